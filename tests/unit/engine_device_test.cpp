// SPDX-License-Identifier: Apache-2.0
// A device alone: what the settings mean on it, which backend serves, its two pools and when they
// start, the bounds that come from its figures, and memory that outlived its context.
#include "engine/context/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <initializer_list>
#include <set>
#include <thread>
#include <vector>

#include "engine/context/context.h"
#include "engine/reclaim/device_use.h"
#include "engine_fake_pools.h"
#include "util/clock.h"

namespace cupool::engine {
namespace {

using stats::Counter;
using stats::Gauge;

class DeviceTest : public testing::Test {
 protected:
  static constexpr int kOrdinal = 2;
  static constexpr std::uint64_t kTotal = std::uint64_t{80} << 30;
  static constexpr std::uint64_t kMiB = 1ull << 20;
  static constexpr std::uint64_t kStep = test::FakePools::kStep;

  DeviceTest() {
    stats::reset_after_fork();
    test::gpu.capacity = kTotal;
    keep(&driver_);
  }
  // The next test's figures begin at 0 too.
  ~DeviceTest() override { stats::reset_after_fork(); }

  // Devices and their contexts are never destroyed. Reachable for ever, so that a leak detector
  // takes them for what they are.
  static void keep(const void* object) {
    static auto* const kept = new std::vector<const void*>;
    kept->push_back(object);
  }
  Device& make(std::initializer_list<const char*> options = {}, int ordinal = kOrdinal) {
    auto* const device = new Device(driver_, ordinal, test::settings_of(options));
    context_ = new Context(driver_, test::fake::context(), *device);
    keep(device);
    keep(context_);
    return *device;
  }

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

  // By the context of the last device that was made.
  CUdeviceptr allocate(Device& device, std::uint64_t capacity) {
    CUdeviceptr address = 0;
    EXPECT_EQ(device.backend().allocate(*context_, capacity, &address), CUDA_SUCCESS);
    return address;
  }
  bool release(Device& device, BlockSource source, CUdeviceptr address) {
    return device.backend_of(source).release(*context_, address);
  }
  void release_orphans(Device& device) { device.orphans().release(*context_, device.pools()); }
  void start_pools(Device& device) { device.pool_start().start(*context_); }
  Preallocation::State preallocate_some(Device& device) {
    return device.pools()->preallocation().reserve_some(*context_);
  }

  static BlockSource source(Device& device) { return device.backend().source(); }
  static void move(Device& device, Gauge gauge, std::uint64_t to) {
    const std::int64_t now = device.stats().value(gauge).current;
    device.stats().gauge_add(gauge, static_cast<std::int64_t>(to) - now);
  }
  static Block& set(Block& block, BlockSource source, std::uint64_t capacity) {
    block.source = source;
    block.capacity = capacity;
    return block;
  }
  bool keeps(Device& device, BlockSource source, std::uint64_t capacity) {
    Block block;
    return device.keeps(set(block, source, capacity));
  }

  cuda::Driver& driver_ = *new cuda::Driver(test::fake_driver_with_pools());
  Context* context_ = nullptr;
  std::uint64_t awaited_ns_ = 0;
};

TEST_F(DeviceTest, SaysWhatTheDriverSaysOfIt) {
  Device& device = make();
  EXPECT_EQ(device.ordinal(), kOrdinal);
  EXPECT_EQ(device.total_bytes(), kTotal);
  EXPECT_EQ(&device.stats(), &stats::device(kOrdinal));
  EXPECT_STREQ(device.stats().device_name(), "fake");
  EXPECT_EQ(device.stats().total_memory_bytes(), kTotal);
}

TEST_F(DeviceTest, SharesAreOfItsTotalMemoryAndSizesAreTaken) {
  const DeviceLimits& defaults = make().limits();
  EXPECT_EQ(defaults.max_block, kTotal);
  EXPECT_EQ(defaults.max_cached, kTotal);
  EXPECT_EQ(defaults.max_pending, kTotal / 100 * 2 + kTotal % 100 * 2 / 100);
  EXPECT_EQ(defaults.release_threshold, kTotal);
  EXPECT_EQ(defaults.max_size, 0u);
  EXPECT_EQ(defaults.prealloc, 0u);
  EXPECT_FALSE(defaults.use_default_pool);
  const DeviceLimits& set =
      make({"CUPOOL_MAX_BLOCK=50%", "CUPOOL_MAX_CACHED=3G", "CUPOOL_MAX_PENDING=64M",
            "CUPOOL_RELEASE_THRESHOLD=25%", "CUPOOL_MAX_SIZE=10%", "CUPOOL_PREALLOC=1G",
            "CUPOOL_POOL=default", "CUPOOL_IPC=0"})
          .limits();
  EXPECT_EQ(set.max_block, kTotal / 2);
  EXPECT_EQ(set.max_cached, 3ull << 30);
  EXPECT_EQ(set.max_pending, 64 * kMiB);
  EXPECT_EQ(set.default_pending, defaults.max_pending) << "where nobody said otherwise";
  EXPECT_EQ(set.release_threshold, kTotal / 4);
  EXPECT_EQ(set.max_size, kTotal / 10);
  EXPECT_EQ(set.prealloc, 1ull << 30);
  EXPECT_TRUE(set.use_default_pool);
  EXPECT_FALSE(set.ipc);
}

TEST_F(DeviceTest, OfADeviceOfUnknownSizeEveryRequestIsPassedThrough) {
  driver_.cuDeviceTotalMem_v2 = [](std::size_t*, CUdevice) { return CUDA_ERROR_UNKNOWN; };
  Device& device = make();
  EXPECT_EQ(device.total_bytes(), 0u);
  EXPECT_EQ(context_->max_block(), 0u);
}

TEST_F(DeviceTest, PoolsServeWhereTheDriverHasThem) {
  EXPECT_EQ(source(make()), BlockSource::pool);
  EXPECT_EQ(source(make({"CUPOOL_BACKEND=pool"})), BlockSource::pool);
  EXPECT_EQ(source(make({"CUPOOL_BACKEND=malloc"})), BlockSource::malloc);
  test::pools->supported = false;
  EXPECT_EQ(source(make()), BlockSource::malloc);
  EXPECT_EQ(source(make({"CUPOOL_BACKEND=pool"})), BlockSource::malloc);
  test::pools->supported = true;
  driver_.cuMemPoolTrimTo = nullptr;
  EXPECT_EQ(source(make()), BlockSource::malloc) << "an older driver";
}

// Copies between devices that cannot be peers would write nothing into pool memory.
TEST_F(DeviceTest, WhereDevicesCannotBePeersMemoryIsPlain) {  // contract 7
  test::pools->devices = 4;
  Device& device = make();
  EXPECT_EQ(source(device), BlockSource::pool);
  test::pools->peers = false;
  Device& alone = make();
  EXPECT_EQ(source(alone), BlockSource::malloc);
  EXPECT_EQ(source(make({"CUPOOL_BACKEND=pool"})), BlockSource::malloc);
  test::pools->peers = true;
  test::pools->count_result = CUDA_ERROR_UNKNOWN;
  EXPECT_EQ(source(make()), BlockSource::malloc) << "who is not known cannot be admitted";
}

TEST_F(DeviceTest, APeerIsAdmittedToPoolsThatAreThereAndToLaterOnes) {  // contract 7
  test::pools->devices = 4;
  Device& device = make();
  allocate(device, kAlignment);
  const auto admitted = [](std::size_t pool) { return test::pools->all().at(pool).admitted; };
  const std::set<int> before = admitted(0);
  device.pools()->pair().admit(9);
  EXPECT_EQ(admitted(0), before) << "no device of this driver";
  device.pools()->pair().admit(kOrdinal);
  EXPECT_EQ(admitted(0), before) << "no peer of itself";
  device.pools()->pair().admit(1);
  EXPECT_EQ(admitted(0).count(1), 1u);
  note_device_in_use(1);
  allocate(device, kLargeUnit);
  EXPECT_EQ(admitted(1).count(1), 1u);
  for (int peer = 0; peer < 10; ++peer) device.pools()->pair().admit(peer);
  EXPECT_EQ(admitted(0), (std::set<int>{0, 1, 3})) << "each of the other three, and no more";
}

TEST_F(DeviceTest, SmallAndLargeBlocksComeFromPoolsOfTheirOwn) {
  Device& device = make({"CUPOOL_RELEASE_THRESHOLD=7G"});
  EXPECT_TRUE(test::pools->all().empty()) << "made when they are needed";
  const CUdeviceptr small = allocate(device, kAlignment);
  EXPECT_EQ(test::pools->all().size(), 1u);
  const CUdeviceptr large = allocate(device, kLargeUnit);
  EXPECT_EQ(test::pools->all().size(), 2u);
  EXPECT_NE(test::pools->pool_of(small), test::pools->pool_of(large));
  EXPECT_EQ(test::pools->pool_of(allocate(device, kLargeUnit / 2)), test::pools->pool_of(small));
  EXPECT_EQ(test::pools->pool_of(allocate(device, 8 * kLargeUnit)), test::pools->pool_of(large));
  for (const auto& pool : test::pools->all()) {
    EXPECT_EQ(pool.device, kOrdinal);
    EXPECT_EQ(pool.threshold, 7ull << 30);
  }
  EXPECT_TRUE(release(device, BlockSource::pool, small));
  EXPECT_EQ(test::pools->pool_of(small), nullptr);
}

TEST_F(DeviceTest, TheDefaultPoolServesBothKindsIfItIsAskedFor) {
  Device& device = make({"CUPOOL_POOL=default"});
  const CUdeviceptr small = allocate(device, kAlignment);
  const CUdeviceptr large = allocate(device, kLargeUnit);
  EXPECT_EQ(test::pools->pool_of(small), test::pools->defaults.at(kOrdinal));
  EXPECT_EQ(test::pools->pool_of(large), test::pools->defaults.at(kOrdinal));
  EXPECT_EQ(device.pool_figures().reserved_current, kStep) << "counted once";
}

TEST_F(DeviceTest, ABlockGoesBackToWhereItCameFrom) {
  Device& device = make();
  EXPECT_EQ(device.backend_of(BlockSource::pool).source(), BlockSource::pool);
  EXPECT_EQ(device.backend_of(BlockSource::malloc).source(), BlockSource::malloc);
  EXPECT_EQ(device.backend_of(BlockSource::malloc).source(), BlockSource::malloc);
  const CUdeviceptr address = allocate(device, kAlignment);
  device.use_plain_memory();
  EXPECT_EQ(source(device), BlockSource::malloc);
  const std::uint64_t freed_plain = test::gpu.frees;
  EXPECT_TRUE(release(device, BlockSource::pool, address)) << "what the pools have given stays so";
  EXPECT_EQ(test::pools->pool_of(address), nullptr);
  EXPECT_EQ(test::gpu.frees, freed_plain);
  const CUdeviceptr plain = allocate(device, kAlignment);
  EXPECT_EQ(test::pools->pool_of(plain), nullptr);
  EXPECT_TRUE(release(device, BlockSource::malloc, plain));
  EXPECT_EQ(test::gpu.frees, freed_plain + 1);
}

TEST_F(DeviceTest, WhatStaysWithUsIsWhatWouldBeServed) {
  Device& device = make();
  EXPECT_TRUE(keeps(device, BlockSource::pool, kAlignment));
  EXPECT_TRUE(keeps(device, BlockSource::pool, kLargeUnit));
  EXPECT_FALSE(keeps(device, BlockSource::malloc, kAlignment)) << "it would pin its chunk";
  EXPECT_TRUE(keeps(device, BlockSource::malloc, kLargeUnit));
  device.use_plain_memory();
  EXPECT_FALSE(keeps(device, BlockSource::pool, kAlignment));
  EXPECT_FALSE(keeps(device, BlockSource::pool, kLargeUnit));
  EXPECT_TRUE(keeps(device, BlockSource::malloc, kAlignment));
  EXPECT_TRUE(keeps(device, BlockSource::malloc, kLargeUnit));
}

TEST_F(DeviceTest, OnlyBlocksOfPoolsAreShared) {  // contract 8
  Device& device = make();
  Block plain;
  set(plain, BlockSource::malloc, kLargeUnit);
  SharedMemory memory;
  EXPECT_FALSE(device.can_share(plain));
  EXPECT_EQ(device.pools()->sharing().share(plain.capacity, plain.address, &memory),
            CUDA_ERROR_NOT_SUPPORTED);
  Block pooled;
  set(pooled, BlockSource::pool, kLargeUnit);
  EXPECT_FALSE(device.can_share(pooled)) << "a driver without handles";
}

// Near its limit: a pool leaves two steps, unless it is the last attempt.
TEST_F(DeviceTest, OnlyTheLastAttemptTakesTheRestOfTheDevice) {  // contract 4
  Device& device = make();
  test::gpu.capacity = 3 * kStep;
  allocate(device, kLargeUnit);
  CUdeviceptr address = 0;
  Backend& pools = device.backend();
  EXPECT_EQ(pools.allocate(*context_, kStep, &address), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(device.backend().allocate_last(*context_, kStep, &address), CUDA_SUCCESS);
  device.use_plain_memory();
  EXPECT_EQ(device.backend().allocate_last(*context_, kLargeUnit, &address),
            CUDA_ERROR_OUT_OF_MEMORY)
      << "plain memory had its attempt";
}

TEST_F(DeviceTest, PoolsStartAtTheFirstBlockUnlessTheyAreLeftToAThread) {
  for (const bool later : {false, true}) {
    Device& device = make();
    if (later) device.pool_start().leave_for_later();
    EXPECT_EQ(device.pool_start().is_done(), !later);
    device.pool_start().leave_to_first_block();
    EXPECT_TRUE(device.pool_start().is_done());
  }
}

// Who names the pools, or says how large they are to be, has them from the start.
TEST_F(DeviceTest, WhereTheSettingsNameThePoolsTheyAreNotLeftToAThread) {
  for (const char* const option :
       {"CUPOOL_BACKEND=pool", "CUPOOL_BACKEND=malloc", "CUPOOL_POOL_START=first",
        "CUPOOL_PREALLOC=1G", "CUPOOL_MAX_SIZE=1G"}) {
    Device& device = make({option});
    device.pool_start().leave_for_later();
    EXPECT_TRUE(device.pool_start().is_done()) << option;
    EXPECT_FALSE(device.pool_start().becomes_due()) << option;
  }
}

TEST_F(DeviceTest, TheThirdFreeIsWhatWantsPools) {
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

TEST_F(DeviceTest, PlainMemoryWaitsForNoPools) {
  Device& device = make();
  device.pool_start().leave_for_later();
  EXPECT_FALSE(device.pool_start().is_done());
  device.use_plain_memory();
  EXPECT_TRUE(device.pool_start().is_done());
}

TEST_F(DeviceTest, OneOfSeveralThreadsStartsThePools) {
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

TEST_F(DeviceTest, AnAllocationWaitsForAStartThatHasTakenLong) {
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

TEST_F(DeviceTest, AnAllocationThatWaitsGoesOnWithThePools) {
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

TEST_F(DeviceTest, WhatIsHeldIsBlocksAndWhatLiesIdleInThePools) {
  Device& device = make();
  release(device, BlockSource::pool, allocate(device, kAlignment));
  allocate(device, 4 * kMiB);
  move(device, Gauge::held_bytes, 4 * kMiB);
  device.stats().add(Counter::growth_total, 2);
  const std::uint64_t held = 4 * kMiB + kStep + (kStep - 4 * kMiB);
  EXPECT_GE(device.budget().most_held(device.pools()), held);
  EXPECT_LE(device.budget().most_held(device.pools()), held + kMiB) << "in MiB, upwards";
}

TEST_F(DeviceTest, TheDriverIsAskedForWhatIsHeldOnceForEachGrowth) {
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

TEST_F(DeviceTest, FiguresOfThePoolsAreSums) {
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
TEST_F(DeviceTest, TheFootprintIsThePeakAndAnEighthAStepAndWhatMayBePending) {
  Device& device = make({"CUPOOL_MAX_PENDING=64M"});
  EXPECT_EQ(device.budget().footprint(), kStep + 64 * kMiB);
  move(device, Gauge::application_bytes, 800 * kMiB);
  EXPECT_EQ(device.budget().footprint(), 900 * kMiB + kStep + 64 * kMiB);
  move(device, Gauge::application_bytes, 8 * kMiB);
  EXPECT_EQ(device.budget().footprint(), 900 * kMiB + kStep + 64 * kMiB) << "the peak's";
}

TEST_F(DeviceTest, PendingMayBeHalfOfWhatTheProgramHasNoMore) {
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

TEST_F(DeviceTest, APreallocationBeginsOnce) {
  EXPECT_FALSE(make().pools()->preallocation().begin()) << "nobody asks for it";
  EXPECT_EQ(make({"CUPOOL_PREALLOC=1G", "CUPOOL_BACKEND=malloc"}).pools(), nullptr);
  Device& device = make({"CUPOOL_PREALLOC=1G"});
  EXPECT_TRUE(device.pools()->preallocation().begin());
  EXPECT_FALSE(device.pools()->preallocation().begin());
  device.pools()->preallocation().reserve(*context_);
  EXPECT_EQ(test::pools->reserved(), 1ull << 30);
  EXPECT_EQ(device.pools()->pair().slack(), 1ull << 30) << "and nobody uses it";
}

TEST_F(DeviceTest, APreallocationInTheBackgroundComesInSlicesAndIsGivenUpWhenMemoryIsShort) {
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

TEST_F(DeviceTest, WhatOutlivedItsContextGoesBackInTheNextOne) {  // contract 10
  Device& device = make();
  std::vector<CUdeviceptr> orphans;
  for (int i = 0; i < 3; ++i) orphans.push_back(allocate(device, kLargeUnit));
  EXPECT_FALSE(device.orphans().contains(orphans[0]));
  device.orphans().add({orphans[0], orphans[1]});
  device.orphans().add({orphans[2]});
  for (const CUdeviceptr each : orphans) {
    EXPECT_TRUE(device.orphans().contains(each));
    EXPECT_FALSE(device.orphans().contains(each + kAlignment));
  }
  EXPECT_EQ(test::pools->reserved(), kStep);
  release_orphans(device);
  for (const CUdeviceptr each : orphans) {
    EXPECT_FALSE(device.orphans().contains(each)) << "nobody's: the device's";
    EXPECT_EQ(test::pools->pool_of(each), nullptr);
  }
  EXPECT_EQ(test::pools->reserved(), 0u);
  const unsigned trims = test::pools->trims;
  release_orphans(device);
  EXPECT_EQ(test::pools->trims, trims) << "there are none: no call of the driver";
}

TEST_F(DeviceTest, WhatThePoolRefusesIsTriedAgainInALaterContext) {
  Device& device = make();
  const CUdeviceptr orphan = allocate(device, kLargeUnit);
  device.orphans().add({orphan});
  test::pools->free_result = CUDA_ERROR_UNKNOWN;
  release_orphans(device);
  EXPECT_TRUE(device.orphans().contains(orphan));
  test::pools->free_result = CUDA_SUCCESS;
  release_orphans(device);
  EXPECT_FALSE(device.orphans().contains(orphan));
  EXPECT_EQ(test::pools->pool_of(orphan), nullptr);
}

TEST_F(DeviceTest, BytesThatAreSetAsideAreCountedByAllThreads) {
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
