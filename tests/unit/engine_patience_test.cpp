// SPDX-License-Identifier: Apache-2.0
// How long a call that runs out of memory takes (docs/compatibility.md): one bound for all of it,
// whoever is beside it, and nothing where no wait could help.
#include "engine_fast_path_fixture.h"

namespace cupool::engine {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kShortNs = 200'000'000;

class PatienceTest : public FastPathTest {
 protected:
  // The device has 64 MiB left of what it said; a freed block's work never ends.
  void SetUp() override {
    FastPathTest::SetUp();
    gpu.capacity.store(64 * kMiB);
    gpu.work.store(Work::held);
    free(allocate(40 * kMiB));
  }

  // As the hook does it. The time that it took.
  std::uint64_t call_in_vain(std::uint64_t bytes, std::uint64_t longest_ns) {
    Patience patience(longest_ns);
    CUdeviceptr address = 0;
    const std::uint64_t start = util::now_ns();
    EXPECT_FALSE(allocator_->allocations().try_allocate(bytes, &address, patience).has_value());
    EXPECT_EQ(allocator_->pass_through().allocate(
                  bytes, [&] { return bytes; }, &address, patience,
                  [&] {
                    ++real_calls_;
                    return driver_->cuMemAlloc_v2(&address, bytes);
                  }),
              CUDA_ERROR_OUT_OF_MEMORY);
    return util::now_ns() - start;
  }

  // Threads that have a cache here and do nothing.
  template <typename Body>
  void beside_idle_threads(int count, const Body& body) {
    std::atomic<int> ready{0};
    std::atomic<bool> done{false};
    std::vector<std::thread> others;
    for (int i = 0; i < count; ++i) {
      others.emplace_back([&] {
        free(allocate(4096));
        ++ready;
        while (!done.load()) std::this_thread::yield();
      });
    }
    while (ready.load() != count) std::this_thread::yield();
    body();
    done.store(true);
    for (std::thread& other : others) other.join();
  }

  int real_calls_ = 0;
};

TEST_F(PatienceTest, IsOneForTheWholeCall) {
  beside_idle_threads(3, [&] {
    const std::uint64_t took = call_in_vain(40 * kMiB, kShortNs);
    EXPECT_GE(took, kShortNs) << "what is retired is waited for";
    EXPECT_LT(took, 2 * kShortNs) << "once";
    EXPECT_GE(real_calls_, 1) << "and the real call decides (contract 4)";
  });
}

TEST_F(PatienceTest, IsNotTriedByWhatCanNeverFit) {
  // The engine knows the device by what it said when it was met.
  const std::uint64_t more = context_->device().total_bytes() + 1;
  EXPECT_LT(call_in_vain(more, Patience::kLongestNs), kShortNs);
  EXPECT_EQ(real_calls_, 1);
}

TEST_F(PatienceTest, BeginsWithTheFirstRefusal) {
  Patience patience(kShortNs);
  std::this_thread::sleep_for(std::chrono::nanoseconds(2 * kShortNs));
  EXPECT_FALSE(patience.over());
  std::this_thread::sleep_for(std::chrono::nanoseconds(2 * kShortNs));
  EXPECT_TRUE(patience.over());
}

}  // namespace
}  // namespace cupool::engine
