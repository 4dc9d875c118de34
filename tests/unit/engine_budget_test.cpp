// SPDX-License-Identifier: Apache-2.0
// What is held on a device, and the bounds that come from its figures: of its footprint, and of
// bytes that may be pending.
#include "engine/backend/budget.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "engine_device_fixture.h"

namespace cupool::engine {
namespace {

class BudgetTest : public DeviceTest {};

TEST_F(BudgetTest, WhatIsHeldIsBlocksAndWhatLiesIdleInThePools) {
  Device& device = make();
  release(device, BlockSource::pool, allocate(device, kAlignment));
  allocate(device, 4 * kMiB);
  move(device, Gauge::held_bytes, 4 * kMiB);
  device.stats().add(Counter::growth_total, 2);
  const std::uint64_t held = 4 * kMiB + kStep + (kStep - 4 * kMiB);
  EXPECT_GE(device.budget().most_held(device.pools()), held);
  EXPECT_LE(device.budget().most_held(device.pools()), held + kMiB) << "in MiB, upwards";
}

TEST_F(BudgetTest, TheDriverIsAskedForWhatIsHeldOnceForEachGrowth) {
  Device& device = make();
  allocate(device, kAlignment);
  move(device, Gauge::held_bytes, kAlignment);
  const auto asks = [&] {
    const unsigned before = test::pools->figures_read;
    device.budget().most_held(device.pools());
    return test::pools->figures_read != before;
  };
  EXPECT_TRUE(asks());
  EXPECT_FALSE(asks());
  const std::uint64_t before = device.budget().most_held(device.pools());
  move(device, Gauge::held_bytes, 64 * kMiB);
  device.stats().add(Counter::growth_total, 1);
  EXPECT_TRUE(asks());
  EXPECT_FALSE(asks());
  EXPECT_GT(device.budget().most_held(device.pools()), before);
  device.budget().forget_most_held();
  EXPECT_TRUE(asks());
  Device& of_default = make({"CUPOOL_POOL=default"});
  allocate(of_default, kAlignment);
  for (int i = 0; i < 2; ++i) {
    const unsigned reads = test::pools->figures_read;
    of_default.budget().most_held(of_default.pools());
    EXPECT_GT(test::pools->figures_read, reads) << "the device's default pool grows unseen";
  }
}

TEST_F(BudgetTest, FiguresOfThePoolsAreSums) {
  Device& device = make();
  const CUdeviceptr small = allocate(device, kAlignment);
  allocate(device, kLargeUnit);
  const stats::PoolFigures figures = device.pool_figures();
  EXPECT_TRUE(figures.valid);
  EXPECT_EQ(figures.reserved_current, 2 * kStep);
  EXPECT_EQ(figures.used_current, kAlignment + kLargeUnit);
  EXPECT_EQ(device.pools()->pair().slack(), 2 * kStep - kAlignment - kLargeUnit);
  EXPECT_EQ(device.pools()->pair().pinned_bytes(), 2 * kStep)
      << "a step of each pool with a live block";
  EXPECT_TRUE(release(device, BlockSource::pool, small));
  EXPECT_EQ(device.pools()->pair().pinned_bytes(), kStep);
  device.trim(*context_);
  EXPECT_EQ(test::pools->reserved(), kLargeUnit) << "idle memory is the device's again";

  Device& plain = make({"CUPOOL_BACKEND=malloc"});
  EXPECT_FALSE(plain.pool_figures().valid);
  EXPECT_EQ(plain.pools(), nullptr);
  plain.trim(*context_);
}

// Below it a miss grows, above it idle blocks of other sizes go back first.
TEST_F(BudgetTest, TheFootprintIsThePeakAndAnEighthAStepAndWhatMayBePending) {
  Device& device = make({"CUPOOL_MAX_PENDING=64M"});
  EXPECT_EQ(device.budget().footprint(), kStep + 64 * kMiB);
  move(device, Gauge::application_bytes, 800 * kMiB);
  EXPECT_EQ(device.budget().footprint(), 900 * kMiB + kStep + 64 * kMiB);
  move(device, Gauge::application_bytes, 8 * kMiB);
  EXPECT_EQ(device.budget().footprint(), 900 * kMiB + kStep + 64 * kMiB) << "the peak's";
}

// What was never pending needs no room.
TEST_F(BudgetTest, OfALimitThatGrowsTheFootprintHasWhatWasEverPending) {
  Device& device = make();
  EXPECT_EQ(device.budget().footprint(), kStep + 64 * kMiB) << "at least";
  move(device, Gauge::application_bytes, 800 * kMiB);
  move(device, Gauge::retired_bytes, 100 * kMiB);
  move(device, Gauge::retired_bytes, 0);
  EXPECT_EQ(device.budget().footprint(), 900 * kMiB + kStep + 100 * kMiB);
  move(device, Gauge::retired_bytes, 900 * kMiB);
  EXPECT_EQ(device.budget().footprint(), 900 * kMiB + kStep + 900 * kMiB);
  move(device, Gauge::retired_bytes, kTotal);
  EXPECT_EQ(device.budget().footprint(), 900 * kMiB + kStep + device.limits().max_pending)
      << "at most";
}

TEST_F(BudgetTest, TheLimitBeginsAtHalfOfThePeak) {
  Device& device = make();
  EXPECT_EQ(device.budget().pending_limit(), 256 * kMiB) << "at least";
  move(device, Gauge::application_bytes, 600 * kMiB);
  EXPECT_EQ(device.budget().pending_limit(), 300 * kMiB);
  move(device, Gauge::application_bytes, 8 * kMiB);
  EXPECT_EQ(device.budget().pending_limit(), 300 * kMiB) << "the peak's";
  move(device, Gauge::application_bytes, kTotal);
  EXPECT_EQ(device.budget().pending_limit(), device.limits().max_pending) << "at most";
  EXPECT_FALSE(device.budget().pending_may_grow());
  EXPECT_EQ(make({"CUPOOL_MAX_PENDING=3M"}).budget().pending_limit(), 3 * kMiB);
}

TEST_F(BudgetTest, TheLimitDoublesWithTwoDryWaitsOfEight) {
  Budget& budget = make().budget();
  const auto wait = [&](int busy, int dry) {
    for (; busy != 0; --busy) budget.count_wait(false);
    for (; dry != 0; --dry) budget.count_wait(true);
  };
  wait(1000, 0);
  EXPECT_EQ(budget.pending_limit(), 256 * kMiB) << "waiting cost nothing";
  for (int period = 0; period < 100; ++period) wait(7, 1);
  EXPECT_EQ(budget.pending_limit(), 256 * kMiB) << "a host that stalls now and then";
  wait(6, 2);
  EXPECT_EQ(budget.pending_limit(), 512 * kMiB);
  wait(0, 1);
  EXPECT_EQ(budget.pending_limit(), 512 * kMiB);
  wait(3, 1);
  EXPECT_EQ(budget.pending_limit(), 1024 * kMiB);
  while (budget.pending_may_grow()) wait(0, 1);
  const std::uint64_t most = kTotal / 100 * 2 + kTotal % 100 * 2 / 100;
  EXPECT_EQ(budget.pending_limit(), most);
  wait(0, 100);
  EXPECT_EQ(budget.pending_limit(), most);
}

TEST_F(BudgetTest, ASetLimitDoesNotGrow) {
  Budget& budget = make({"CUPOOL_MAX_PENDING=64M"}).budget();
  EXPECT_FALSE(budget.pending_may_grow());
  for (int i = 0; i < 10; ++i) budget.count_wait(true);
  EXPECT_EQ(budget.pending_limit(), 64 * kMiB);
}

TEST_F(BudgetTest, PendingMayBeHalfOfWhatTheProgramHasNoMore) {
  Device& device = make({"CUPOOL_MAX_PENDING=64M"});
  const std::uint64_t limit = 64 * kMiB;
  EXPECT_EQ(device.budget().pending_bound(0), limit);
  move(device, Gauge::application_bytes, 400 * kMiB);
  EXPECT_EQ(device.budget().pending_bound(0), limit) << "it has all of its peak";
  move(device, Gauge::application_bytes, 300 * kMiB);
  EXPECT_EQ(device.budget().pending_bound(0), limit + 50 * kMiB);
  EXPECT_EQ(device.budget().pending_bound(40 * kMiB), limit + 30 * kMiB)
      << "but for what it frees now";
  EXPECT_EQ(device.budget().pending_bound(200 * kMiB), limit);
  move(device, Gauge::application_bytes, kTotal);
  move(device, Gauge::application_bytes, 0);
  EXPECT_EQ(device.budget().pending_bound(0), device.limits().default_pending)
      << "up to the default";
  Device& more = make({"CUPOOL_MAX_PENDING=10G"});
  EXPECT_EQ(more.budget().pending_bound(0), 10ull << 30) << "what is above it stays as it is said";
  EXPECT_EQ(make({"CUPOOL_MAX_PENDING=0"}).budget().pending_bound(kTotal), 0u);
}

TEST_F(BudgetTest, BytesThatAreSetAsideAreCountedByAllThreads) {
  Device& device = make();
  EXPECT_EQ(device.budget().aside_bytes(), 0u);
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      ++ready;
      while (ready < 4) std::this_thread::yield();
      for (int call = 0; call < 20'000; ++call) {
        device.budget().count_aside(3 * kAlignment);
        device.budget().count_aside(-std::int64_t{kAlignment});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(device.budget().aside_bytes(), 80'000 * 2 * kAlignment);
}

}  // namespace
}  // namespace cupool::engine
