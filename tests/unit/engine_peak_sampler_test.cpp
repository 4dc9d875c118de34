// SPDX-License-Identifier: Apache-2.0
// How memory divides at its highest use (docs/design.md, Peak use): the parts add up, are of that
// moment and no later one, and cost a program nothing where no fresh block is taken.
#include "engine/serve/peak_sampler.h"

#include <gtest/gtest.h>

#include "engine_pool_engine_fixture.h"

namespace cupool::engine {
namespace {

using stats::PeakUse;

class PeakUseTest : public PoolEngineTest {
 protected:
  static constexpr std::int64_t kMiB = 1 << 20;
  static constexpr std::int64_t kStep = test::FakePools::kStep;

  PeakUse peak() { return stats::peak_use_of(context_->device().ordinal()).read(); }
  std::int64_t reserved() { return static_cast<std::int64_t>(test::pools->reserved()); }
};

TEST_F(PeakUseTest, ThereIsNoneBeforeTheFirstBlock) {
  EXPECT_FALSE(peak().valid());
}

TEST_F(PeakUseTest, ASmallProgramSeesTheStepOfItsPool) {
  allocate_several(3, 100 * 1024);
  const PeakUse use = peak();
  ASSERT_TRUE(use.valid());
  EXPECT_EQ(use.application_bytes, 3 * 100 * 1024);
  EXPECT_EQ(use.rounding_bytes, now(Gauge::rounding_bytes));
  EXPECT_GT(use.rounding_bytes, 0);
  EXPECT_EQ(use.retired_bytes, 0);
  EXPECT_EQ(use.cached_bytes, 0);
  EXPECT_EQ(use.taken_bytes(), kStep);
  EXPECT_EQ(use.driver_slack_bytes, kStep - now(Gauge::held_bytes));
}

TEST_F(PeakUseTest, LargeBlocksAreRoundedInStepsOf2MiB) {
  allocate(2 * kMiB + 1);
  EXPECT_EQ(peak().application_bytes, 2 * kMiB + 1);
  EXPECT_EQ(peak().rounding_bytes, 2 * kMiB - 1);
  EXPECT_EQ(peak().driver_slack_bytes, kStep - 4 * kMiB);
}

TEST_F(PeakUseTest, EachPoolHasAStepOfItsOwn) {
  allocate(100 * 1024);
  allocate(4 * kMiB);
  EXPECT_EQ(peak().taken_bytes(), 2 * kStep);
  EXPECT_EQ(peak().reserved_bytes(), reserved());
}

TEST_F(PeakUseTest, IsOfTheHighestMomentAndOfNoLaterOne) {
  const std::vector<CUdeviceptr> blocks = allocate_several(10, 40 * kMiB);
  const PeakUse highest = peak();
  EXPECT_EQ(highest.application_bytes, 400 * kMiB);
  EXPECT_EQ(highest.taken_bytes(), reserved());
  free_all(blocks);
  Patience patience;
  EXPECT_TRUE(allocator_->out_of_memory().give_back_idle(*context_, patience));
  ASSERT_LT(reserved(), 400 * kMiB);
  allocate(8 * kMiB);
  EXPECT_EQ(peak().time_ns, highest.time_ns);
  EXPECT_EQ(peak().application_bytes, 400 * kMiB);
}

// A step counts as the program filled it, not as it was when the pool took it.
TEST_F(PeakUseTest, IsTheFullestMomentOfAStep) {
  for (int blocks = 1; blocks <= 8; ++blocks) {
    allocate(4 * kMiB);
    EXPECT_EQ(peak().application_bytes, 4 * kMiB * blocks);
    EXPECT_EQ(peak().taken_bytes(), kStep);
  }
  EXPECT_EQ(peak().driver_slack_bytes, 0);
}

TEST_F(PeakUseTest, FreedBlocksCountAsRetiredOrCached) {
  allocate(800 * kMiB);  // idle blocks are not released for the small ones that follow
  gpu.work.store(test::FakeGpu::Work::held);
  free(allocate(4 * kMiB));
  allocate(40 * kMiB);
  EXPECT_EQ(peak().application_bytes, 840 * kMiB);
  EXPECT_EQ(peak().retired_bytes, 4 * kMiB);
  EXPECT_EQ(peak().cached_bytes, 0);
  gpu.work.store(test::FakeGpu::Work::none);
  free_all(allocate_several(3, 100 * 1024));
  context_->threads().drain(Drain::all);
  allocate(2 * kMiB);
  allocate(40 * kMiB);
  EXPECT_EQ(peak().application_bytes, 882 * kMiB);
  EXPECT_EQ(peak().cached_bytes + peak().retired_bytes, now(Gauge::held_bytes) - 882 * kMiB);
  EXPECT_GT(peak().cached_bytes, 0);
  EXPECT_EQ(peak().taken_bytes(), reserved());
}

// Calls of other threads that are not yet in the statistics.
TEST_F(PeakUseTest, AnotherThreadsCacheCounts) {
  allocate(40 * kMiB);
  const CUdeviceptr mine = allocate(300 * 1024);
  free(mine);
  pairs(5, 300 * 1024);
  in_thread([&] { allocate(80 * kMiB); });
  EXPECT_EQ(peak().application_bytes, 120 * kMiB);
  EXPECT_EQ(peak().retired_bytes + peak().cached_bytes, now(Gauge::held_bytes) - 120 * kMiB);
  EXPECT_GE(peak().retired_bytes + peak().cached_bytes, 300 * 1024);
  EXPECT_EQ(peak().taken_bytes(), reserved());
}

TEST_F(PeakUseTest, PlainMemoryIsTakenWithoutSteps) {
  start({{"CUPOOL_BACKEND", "malloc"}});
  allocate_several(3, 100 * 1024);
  EXPECT_EQ(peak().application_bytes, 3 * 100 * 1024);
  EXPECT_EQ(peak().driver_slack_bytes, 0);
  EXPECT_EQ(peak().taken_bytes(), now(Gauge::held_bytes));
  EXPECT_EQ(peak().plain_bytes, now(Gauge::held_bytes));
  EXPECT_EQ(peak().reserved_bytes(), 0);
}

TEST_F(PeakUseTest, BlocksFromACacheAskTheDriverNothing) {
  pairs(50'000, 4096);
  const unsigned before = test::pools->figures_read;
  const PeakUse highest = peak();
  pairs(10'000, 4096);
  EXPECT_EQ(test::pools->figures_read, before);
  EXPECT_EQ(peak().time_ns, highest.time_ns);
}

// Threads that take fresh memory at the same time: every sample adds up, and the last one has all.
TEST_F(PeakUseTest, ThreadsThatGrowTogetherAreCountedTogether) {
  constexpr int kThreads = 4;
  constexpr int kBlocks = 50;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int block = 0; block < kBlocks; ++block) {
        allocate(4 * kMiB);
        const PeakUse use = peak();
        EXPECT_TRUE(use.adds_up());
        EXPECT_LE(use.taken_bytes(), reserved());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(peak().application_bytes, kThreads * kBlocks * 4 * kMiB);
  EXPECT_EQ(peak().taken_bytes(), reserved());
  EXPECT_EQ(peak().cached_bytes, 0);
}

}  // namespace
}  // namespace cupool::engine
