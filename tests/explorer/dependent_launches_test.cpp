// SPDX-License-Identifier: Apache-2.0
// Programmatic dependent launches into the lane, in every interleaving with frees in it and with
// other such launches. A kernel that may overlap comes behind the last launch of its stream that
// waited for all before it. The property: no kernel uses a block that was handed out before such a
// launch has come behind the block's last use, and that launch was made before, as far as the
// launching thread can know. An overlap does not reach back over a wait for an event of another
// stream; over one of its own it does.
#include "lane_world.h"

namespace explorer {
namespace {

using cupool::cuda::LaunchAttribute;
using cupool::cuda::LaunchConfiguration;
using cupool::engine::DependentLaunch;

struct Launches : World {
  Launches() {
    attribute.id = cupool::cuda::kProgrammaticStreamSerialization;
    configuration.attributes = &attribute;
    configuration.attribute_count = 1;
  }

  /// A kernel that may overlap with those before it, as far as its program knows. It uses a block
  /// whose last use has this number, 0: none.
  void launch(CUstream stream, int last_use, CUresult result = CUDA_SUCCESS) {
    around_launch(stream, [&] {
      const DependentLaunch dependent(driver, &configuration, stream, false);
      if (result == CUDA_SUCCESS) run(dependent.configuration(), stream, last_use);
      if (result == CUDA_SUCCESS) dependent.submitted();
      return 0;
    });
  }
  /// Of a block that was freed in the lane.
  void launch_with_block() {
    const int last_use = freed[0].load(std::memory_order_acquire);
    if (last_use != 0) launch(kLane, last_use);
  }

  // The driver. A thread knows of another's launch no more than the two have told each other.
  void run(const void* given, CUstream stream, int last_use) {
    const bool overlaps = given == &configuration;
    const int behind = stream == kLane ? done : std::max(done, waited_for[stream]);
    if (overlaps && last_use > behind) {
      require(static_cast<int>(load(alone, std::memory_order_relaxed, Site::here())) > last_use,
              "no kernel overlaps with the last one of its block's last owner");
    }
    if (stream != kLane) return;
    const int number = add_to_queue(1, std::memory_order_relaxed) + 1;
    if (overlaps) return;
    const auto newer = [=](std::uint64_t before) {
      return std::max(before, static_cast<std::uint64_t>(number));
    };
    modify(alone, newer, std::memory_order_relaxed, Site::here());
  }

  LaunchAttribute attribute{};
  LaunchConfiguration configuration{};
  Cell alone;  ///< the last launch into the lane that waits for all before it
};

// A block goes from one thread to another, beside a launch of a third one.
Program launching_beside_a_free(CUstream third) {
  return [=](Threads& run) {
    const auto world = std::make_shared<Launches>();
    run.thread([=] { world->free_used(); });
    run.thread([=] { world->launch_with_block(); });
    run.thread([=] { world->launch(third, 0); });
  };
}

// The driver refuses the launch of the third thread.
Program failing_beside_a_free() {
  return [=](Threads& run) {
    const auto world = std::make_shared<Launches>();
    run.thread([=] { world->free_used(); });
    run.thread([=] { world->launch_with_block(); });
    run.thread([=] { world->launch(kLane, 0, CUDA_ERROR_INVALID_VALUE); });
  };
}

// Blocks are handed out without a mark (AsyncMemory::adopt(), and a free in a stream).
Program launching_where_nothing_is_marked() {
  return [=](Threads& run) {
    const auto world = std::make_shared<Launches>();
    run.thread([=] {
      DependentLaunch::serialise_all();
      world->freed[0].store(world->used, std::memory_order_release);
    });
    run.thread([=] { world->launch_with_block(); });
    run.thread([=] { world->launch(kLane, 0); });
  };
}

std::vector<Program> all_programs() {
  return {launching_beside_a_free(kLane), launching_beside_a_free(stream_of(2)),
          failing_beside_a_free(), launching_where_nothing_is_marked()};
}

TEST(Explorer, DependentLaunches) {
  const std::vector<Program> programs = all_programs();
  for (const Program& program : programs) expect_right(program);
  for (const char* file : {"dependent_launches.h", "dependent_launches.cpp"}) {
    EXPECT_EQ(unneeded_orders(programs, file), std::vector<std::string>{}) << file;
  }
}

}  // namespace
}  // namespace explorer
