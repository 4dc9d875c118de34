// SPDX-License-Identifier: Apache-2.0
// When the pools of a device start, who waits for that, and memory that they reserve in advance.
#include "engine/backend/pool_start.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "engine_device_fixture.h"
#include "util/clock.h"

namespace cupool::engine {
namespace {

class PoolStartTest : public DeviceTest {
 protected:
  // One whose pools an allocation wants started.
  Device& make_awaited() {
    Device& device = make();
    device.pool_start().leave_for_later();
    EXPECT_FALSE(device.pool_start().wait()) << "nobody has asked for it";
    for (int i = 0; i < 3; ++i) device.pool_start().count_free_by_driver();
    awaited_ns_ = util::now_ns();
    EXPECT_TRUE(device.pool_start().becomes_due());
    return device;
  }
  void start_pools(Device& device) { device.pool_start().start(*context_); }
  Preallocation::State preallocate_some(Device& device) {
    return device.pools()->preallocation().reserve_some(*context_);
  }

  std::uint64_t awaited_ns_ = 0;
};

TEST_F(PoolStartTest, PoolsStartAtTheFirstBlockUnlessTheyAreLeftToAThread) {
  for (const bool later : {false, true}) {
    Device& device = make();
    if (later) device.pool_start().leave_for_later();
    EXPECT_EQ(device.pool_start().is_done(), !later);
    device.pool_start().leave_to_first_block();
    EXPECT_TRUE(device.pool_start().is_done());
  }
}

// Who names the pools, or says how large they are to be, has them from the start.
TEST_F(PoolStartTest, WhereTheSettingsNameThePoolsTheyAreNotLeftToAThread) {
  for (const char* const option :
       {"CUPOOL_BACKEND=pool", "CUPOOL_BACKEND=malloc", "CUPOOL_POOL_START=first",
        "CUPOOL_PREALLOC=1G", "CUPOOL_MAX_SIZE=1G"}) {
    Device& device = make({option});
    device.pool_start().leave_for_later();
    EXPECT_TRUE(device.pool_start().is_done()) << option;
    EXPECT_FALSE(device.pool_start().becomes_due()) << option;
  }
}

TEST_F(PoolStartTest, TheThirdFreeIsWhatWantsPools) {
  Device& device = make();
  for (int i = 0; i < 5; ++i) device.pool_start().count_free_by_driver();
  device.pool_start().leave_for_later();
  EXPECT_FALSE(device.pool_start().becomes_due()) << "nothing of that was the driver's";
  device.pool_start().count_free_by_driver();
  device.pool_start().count_free_by_driver();
  EXPECT_FALSE(device.pool_start().becomes_due()) << "it may have no use for them";
  EXPECT_FALSE(device.pool_start().is_due());
  device.pool_start().count_free_by_driver();
  EXPECT_TRUE(device.pool_start().becomes_due());
  EXPECT_FALSE(device.pool_start().becomes_due()) << "one allocation is told so";
  EXPECT_TRUE(device.pool_start().is_due());
  EXPECT_FALSE(device.pool_start().is_done());
  start_pools(device);
  EXPECT_TRUE(device.pool_start().is_done());
  EXPECT_FALSE(device.pool_start().is_due());
  ASSERT_EQ(test::pools->all().size(), 2u) << "both of them";
  EXPECT_EQ(test::pools->reserved(), 0u) << "their first blocks have gone back to the device";
}

#if CUDA_VERSION >= 12080
// Contract 6: memory of cudaMalloc may be decompressed by hardware, where the device has such.
TEST_F(PoolStartTest, PoolsServeTheDecompressionEngineWhereThereIsOne) {
  driver_.version = 12080;
  for (const bool decompresses : {false, true}) {
    const std::size_t before = test::pools->all().size();
    test::pools->decompresses = decompresses;
    start_pools(make());
    const auto all = test::pools->all();
    ASSERT_GT(all.size(), before);
    const unsigned wanted = decompresses ? CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS : 0;
    for (std::size_t i = before; i < all.size(); ++i) EXPECT_EQ(all[i].usage, wanted);
  }
  test::pools->refuses_usage = true;
  start_pools(make());
  EXPECT_EQ(test::pools->all().back().usage, 0u) << "rather than no pools";
  driver_.version = 12070;
  const std::size_t before = test::pools->all().size();
  start_pools(make());
  ASSERT_GT(test::pools->all().size(), before);
  EXPECT_EQ(test::pools->all().back().usage, 0u) << "an older driver refuses what it does not know";
}
#endif

TEST_F(PoolStartTest, PlainMemoryWaitsForNoPools) {
  Device& device = make();
  device.pool_start().leave_for_later();
  EXPECT_FALSE(device.pool_start().is_done());
  device.use_plain_memory();
  EXPECT_TRUE(device.pool_start().is_done());
}

TEST_F(PoolStartTest, OneOfSeveralThreadsStartsThePools) {
  Device& device = make();
  device.pool_start().leave_for_later();
  for (int i = 0; i < 3; ++i) device.pool_start().count_free_by_driver();
  std::atomic<int> told{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int call = 0; call < 1000; ++call) told += device.pool_start().becomes_due() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(told, 1);
}

TEST_F(PoolStartTest, AnAllocationWaitsForAStartThatHasTakenLong) {
  constexpr std::uint64_t kMs = 1'000'000;
  const auto wait_ns = [](Device& waited_for, bool started) {
    const std::uint64_t begin = util::now_ns();
    EXPECT_EQ(waited_for.pool_start().wait(), started);
    return util::now_ns() - begin;
  };
  std::uint64_t least_ns = ~std::uint64_t{0};
  for (int i = 0; i < 5; ++i) least_ns = std::min(least_ns, wait_ns(make_awaited(), false));
  EXPECT_LT(least_ns, 50 * kMs) << "not yet";
  Device& device = make_awaited();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const bool in_time = util::now_ns() < awaited_ns_ + 60 * kMs;  // else this thread was held up
  const std::uint64_t first_ns = wait_ns(device, false);
  EXPECT_GE(first_ns, in_time ? 50 * kMs : 0) << "up to 115 ms after it was asked for";
  least_ns = ~std::uint64_t{0};
  for (int i = 0; i < 5; ++i) least_ns = std::min(least_ns, wait_ns(device, false));
  EXPECT_LT(least_ns, 50 * kMs) << "and not again in the same second";
  device.pool_start().leave_to_first_block();
  EXPECT_LT(wait_ns(device, true), 500 * kMs);
}

TEST_F(PoolStartTest, AnAllocationThatWaitsGoesOnWithThePools) {
  Device& device = make_awaited();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::thread starts([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    device.pool_start().leave_to_first_block();
  });
  const bool started = device.pool_start().wait();
  const bool in_time = util::now_ns() < awaited_ns_ + std::uint64_t{110'000'000};
  starts.join();
  EXPECT_TRUE(started || !in_time);
}

TEST_F(PoolStartTest, APreallocationBeginsOnce) {
  EXPECT_FALSE(make().pools()->preallocation().begin()) << "nobody asks for it";
  EXPECT_EQ(make({"CUPOOL_PREALLOC=1G", "CUPOOL_BACKEND=malloc"}).pools(), nullptr);
  Device& device = make({"CUPOOL_PREALLOC=1G"});
  EXPECT_TRUE(device.pools()->preallocation().begin());
  EXPECT_FALSE(device.pools()->preallocation().begin());
  device.pools()->preallocation().reserve(*context_);
  EXPECT_EQ(test::pools->reserved(), 1ull << 30);
  EXPECT_EQ(device.pools()->pair().slack(), 1ull << 30) << "and nobody uses it";
}

TEST_F(PoolStartTest, APreallocationInTheBackgroundComesInSlicesAndIsGivenUpWhenMemoryIsShort) {
  constexpr std::uint64_t kSlice = 64 * kMiB;
  Device& device = make({"CUPOOL_PREALLOC=160M"});
  EXPECT_EQ(preallocate_some(device), Preallocation::ended) << "it was not left to a thread";
  device.pools()->preallocation().leave_for_later();
  EXPECT_TRUE(device.pools()->preallocation().is_left());
  EXPECT_EQ(preallocate_some(device), Preallocation::goes_on);
  EXPECT_EQ(device.pools()->preallocation().bytes(), kSlice);
  EXPECT_EQ(preallocate_some(device), Preallocation::goes_on);
  EXPECT_EQ(preallocate_some(device), Preallocation::goes_on);
  EXPECT_EQ(device.pools()->preallocation().bytes(), 160 * kMiB);
  EXPECT_EQ(preallocate_some(device), Preallocation::ended);
  EXPECT_FALSE(device.pools()->preallocation().is_left());
  EXPECT_EQ(device.pools()->preallocation().bytes(), 0u) << "the pool's, for whoever needs it";
  EXPECT_EQ(device.pools()->pair().slack(), 160 * kMiB);

  Device& short_of = make({"CUPOOL_PREALLOC=160M"});
  short_of.pools()->preallocation().leave_for_later();
  EXPECT_EQ(preallocate_some(short_of), Preallocation::goes_on);
  short_of.pools()->preallocation().end(*context_);
  EXPECT_EQ(short_of.pools()->preallocation().bytes(), 0u);
  EXPECT_EQ(preallocate_some(short_of), Preallocation::ended);
  EXPECT_EQ(short_of.pools()->pair().slack(), kSlice) << "and no more of it comes";
}

}  // namespace
}  // namespace cupool::engine
