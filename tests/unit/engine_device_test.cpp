// SPDX-License-Identifier: Apache-2.0
// A device alone: what the settings mean on it, which backend serves, its two pools, and memory
// that outlived its context.
#include "engine/context/device.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "engine/reclaim/device_use.h"
#include "engine_device_fixture.h"

namespace cupool::engine {
namespace {

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
  EXPECT_TRUE(defaults.pending_grows);
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
  EXPECT_FALSE(set.pending_grows);
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
  EXPECT_TRUE(may_cache(device, BlockSource::pool, kAlignment));
  EXPECT_TRUE(may_cache(device, BlockSource::pool, kLargeUnit));
  EXPECT_FALSE(may_cache(device, BlockSource::malloc, kAlignment)) << "it would pin its chunk";
  EXPECT_TRUE(may_cache(device, BlockSource::malloc, kLargeUnit));
  device.use_plain_memory();
  EXPECT_FALSE(may_cache(device, BlockSource::pool, kAlignment));
  EXPECT_FALSE(may_cache(device, BlockSource::pool, kLargeUnit));
  EXPECT_TRUE(may_cache(device, BlockSource::malloc, kAlignment));
  EXPECT_TRUE(may_cache(device, BlockSource::malloc, kLargeUnit));
}

TEST_F(DeviceTest, OnlyBlocksOfPoolsAreShared) {  // contract 8
  Device& device = make();
  Block plain;
  set(plain, BlockSource::malloc, kLargeUnit);
  SharedMemory memory;
  EXPECT_FALSE(can_share(device, plain));
  EXPECT_EQ(device.pools()->sharing().share(plain.capacity, plain.address, &memory),
            CUDA_ERROR_NOT_SUPPORTED);
  Block pooled;
  set(pooled, BlockSource::pool, kLargeUnit);
  EXPECT_FALSE(can_share(device, pooled)) << "a driver without handles";
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

TEST_F(DeviceTest, WhatOutlivedItsContextGoesBackInTheNextOne) {  // contract 10
  Device& device = make();
  std::vector<CUdeviceptr> orphans;
  for (int i = 0; i < 3; ++i) orphans.push_back(allocate(device, kLargeUnit));
  EXPECT_FALSE(device.orphans().contains(orphans[0]));
  for (const CUdeviceptr each : orphans) device.orphans().add(each);
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
  device.orphans().add(orphan);
  test::pools->free_result = CUDA_ERROR_UNKNOWN;
  release_orphans(device);
  EXPECT_TRUE(device.orphans().contains(orphan));
  test::pools->free_result = CUDA_SUCCESS;
  release_orphans(device);
  EXPECT_FALSE(device.orphans().contains(orphan));
  EXPECT_EQ(test::pools->pool_of(orphan), nullptr);
}

}  // namespace
}  // namespace cupool::engine
