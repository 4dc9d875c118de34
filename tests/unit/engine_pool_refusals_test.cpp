// SPDX-License-Identifier: Apache-2.0
// Pools, the default pool, the small chunk and the streams beside a driver that refuses: what is
// not known stays, and what is not cupool's is left alone.
#include <set>

#include "engine/backend/default_pool.h"
#include "engine_device_fixture.h"

namespace cupool::engine {
namespace {

// What the driver refuses: reads and writes of these attributes.
std::set<CUmemPool_attribute> unreadable;
std::set<CUmemPool_attribute> unwritable;
bool scopes_refused = false;
CUresult free_answer = CUDA_SUCCESS;
int plain_frees = 0;

class PoolRefusalTest : public DeviceTest {
 protected:
  PoolRefusalTest() {
    unreadable.clear();
    unwritable.clear();
    scopes_refused = false;
    free_answer = CUDA_SUCCESS;
    plain_frees = 0;
    driver_.cuMemPoolGetAttribute = [](CUmemoryPool pool, CUmemPool_attribute attribute,
                                       void* value) {
      if (unreadable.count(attribute) != 0) return CUDA_ERROR_UNKNOWN;
      return value == nullptr ? CUDA_SUCCESS : test::fake::pool_attribute(pool, attribute, value);
    };
    driver_.cuMemPoolSetAttribute = [](CUmemoryPool pool, CUmemPool_attribute attribute,
                                       void* value) {
      if (unwritable.count(attribute) != 0) return CUDA_ERROR_UNKNOWN;
      return test::fake::set_pool_attribute(pool, attribute, value);
    };
    driver_.cuCtxGetCurrent = [](CUcontext* context) {
      *context = test::fake::context();
      return scopes_refused ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
    };
    driver_.cuMemFree_v2 = [](CUdeviceptr) {
      ++plain_frees;
      return free_answer;
    };
  }
  DefaultPool& kept() {
    DefaultPool& pool = make().default_pool();
    EXPECT_TRUE(pool.keep(nullptr));
    return pool;
  }
  test::FakePools::Pool& default_pool() {
    CUmemoryPool pool = nullptr;
    test::fake::default_pool(&pool, kOrdinal);
    return test::pools->pools.at(pool);
  }
  // Idle memory of the default pool.
  void use_default(std::uint64_t bytes) {
    CUmemoryPool pool = nullptr;
    test::fake::default_pool(&pool, kOrdinal);
    CUdeviceptr address = 0;
    test::fake::allocate_from_pool(&address, bytes, pool, nullptr);
    test::fake::free_to_pool(address, nullptr);
  }
  static void end_steps(DefaultPool& pool) {
    for (std::size_t i = 0; i <= BlockCache::kDecaySteps; ++i) {
      pool.end_step();
      while (pool.trim_unneeded(64 * kMiB).more) {
      }
    }
  }
};

TEST_F(PoolRefusalTest, AnUnknownThresholdIsTakenForCupools) {
  DefaultPool& pool = kept();
  use_default(4 * kStep);
  unreadable = {CU_MEMPOOL_ATTR_RELEASE_THRESHOLD};
  EXPECT_EQ(pool.trim(), 4 * kStep);
  EXPECT_TRUE(pool.is_kept());
}

TEST_F(PoolRefusalTest, APoolOfUnknownSizeHasNothingIdle) {
  DefaultPool& pool = kept();
  use_default(4 * kStep);
  for (const CUmemPool_attribute unknown :
       {CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_CURRENT}) {
    unreadable = {unknown};
    EXPECT_EQ(pool.fill().idle_bytes(), 0u);
    EXPECT_FALSE(pool.fill().is_unclear());
  }
}

TEST_F(PoolRefusalTest, WithoutTheHighestUseNothingDecays) {
  DefaultPool& pool = kept();
  use_default(4 * kStep);
  for (const CUmemPool_attribute unknown :
       {CU_MEMPOOL_ATTR_USED_MEM_HIGH, CU_MEMPOOL_ATTR_USED_MEM_CURRENT}) {
    unreadable = {unknown};
    end_steps(pool);
    EXPECT_EQ(default_pool().reserved, 4 * kStep);
  }
  unreadable.clear();
  end_steps(pool);
  EXPECT_EQ(default_pool().reserved, 0u);
}

TEST_F(PoolRefusalTest, AMarkThatCannotBeResetHoldsMemory) {
  DefaultPool& pool = kept();
  use_default(4 * kStep);
  unwritable = {CU_MEMPOOL_ATTR_USED_MEM_HIGH};
  end_steps(pool);
  EXPECT_EQ(default_pool().reserved, 4 * kStep) << "of which the mark says that it was needed";
  unwritable.clear();
  end_steps(pool);
  EXPECT_EQ(default_pool().reserved, 0u);
}

TEST_F(PoolRefusalTest, DecayLeavesAPoolThatIsNotKept) {
  DefaultPool& pool = kept();
  use_default(4 * kStep);
  default_pool().threshold = 7;  // by a route that cupool does not see
  pool.end_step();
  EXPECT_FALSE(pool.is_kept());
  pool.end_step();
  EXPECT_FALSE(pool.trim_unneeded(64 * kMiB).any);
  EXPECT_EQ(default_pool().reserved, 4 * kStep);
}

TEST_F(PoolRefusalTest, APoolThatIsLeftBetweenTwoPartsOfAStepIsNotTrimmed) {
  DefaultPool& pool = kept();
  use_default(8 * kStep);
  for (std::size_t i = 0; i <= BlockCache::kDecaySteps; ++i) pool.end_step();
  EXPECT_TRUE(pool.trim_unneeded(kMiB).more);
  pool.leave();
  const std::uint64_t reserved = default_pool().reserved;
  EXPECT_FALSE(pool.trim_unneeded(kMiB).any);
  EXPECT_EQ(default_pool().reserved, reserved);
}

TEST_F(PoolRefusalTest, AThresholdThatCannotBeSetBackIsLeftAllTheSame) {
  DefaultPool& pool = kept();
  use_default(4 * kStep);
  unwritable = {CU_MEMPOOL_ATTR_RELEASE_THRESHOLD};
  pool.leave();
  EXPECT_FALSE(pool.is_kept());
  EXPECT_EQ(default_pool().reserved, 0u) << "what is idle goes back once";
}

TEST_F(PoolRefusalTest, TheLastContextsEndAsksTwiceAndTrimsOnlyWhatIsKept) {  // contract 10
  static int refusals;
  DefaultPool& pool = kept();
  use_default(4 * kStep);
  driver_.cuDeviceGetDefaultMemPool = [](CUmemoryPool* handle, CUdevice device) {
    return refusals-- > 0 ? CUDA_ERROR_UNKNOWN : test::fake::default_pool(handle, device);
  };
  refusals = 1;
  pool.contexts_gone();
  EXPECT_EQ(default_pool().reserved, 0u);
  EXPECT_TRUE(pool.is_kept());
  use_default(4 * kStep);
  default_pool().threshold = 7;
  pool.contexts_gone();
  EXPECT_FALSE(pool.is_kept());
  pool.contexts_gone();
  EXPECT_EQ(default_pool().reserved, 4 * kStep) << "it is the program's";
  // The driver may name none.
  driver_.cuDeviceGetDefaultMemPool = [](CUmemoryPool* handle, CUdevice) {
    *handle = nullptr;
    return CUDA_SUCCESS;
  };
  pool.contexts_gone();
  EXPECT_FALSE(pool.is_kept());
}

TEST_F(PoolRefusalTest, TheProgramsOwnQuestionsAreAnsweredByTheDriver) {  // contract 12
  DefaultPool& pool = kept();
  EXPECT_EQ(pool.get_attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH, nullptr), CUDA_SUCCESS);
  unreadable = {CU_MEMPOOL_ATTR_USED_MEM_HIGH};
  cuuint64_t value = 5;
  EXPECT_EQ(pool.get_attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(value, 5u);
  unreadable.clear();
  pool.leave();
  default_pool().high = 3 * kStep;
  cuuint64_t zero = 0;
  EXPECT_EQ(pool.set_attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero), CUDA_SUCCESS);
  EXPECT_EQ(pool.get_attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value), CUDA_SUCCESS);
  EXPECT_EQ(value, 0u);
  default_pool().threshold = 9;
  EXPECT_EQ(pool.get_attribute(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value), CUDA_SUCCESS);
  EXPECT_EQ(value, 9u) << "not cupool's any more";
}

TEST_F(PoolRefusalTest, FiguresOfAPoolAreValidAsAWholeOnly) {
  Device& device = make();
  allocate(device, kMiB);
  EXPECT_TRUE(device.pool_figures().valid);
  EXPECT_GT(device.pools()->pair().slack(), 0u);
  for (const CUmemPool_attribute unknown :
       {CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
        CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_HIGH}) {
    unreadable = {unknown};
    EXPECT_FALSE(device.pool_figures().valid);
  }
  unreadable = {CU_MEMPOOL_ATTR_USED_MEM_CURRENT};
  EXPECT_EQ(device.pools()->pair().slack(), 0u) << "nobody knows";
}

TEST_F(PoolRefusalTest, PoolsNeedAllOfTheDriversFunctions) {
  EXPECT_TRUE(PoolBackend::supported(driver_, kOrdinal));
  for (const int missing : {0, 1, 2, 3}) {
    cuda::Driver driver = driver_;
    if (missing == 0) driver.cuMemAllocFromPoolAsync = nullptr;
    if (missing == 1) driver.cuMemFreeAsync = nullptr;
    if (missing == 2) driver.cuMemPoolSetAttribute = nullptr;
    if (missing == 3) driver.cuMemPoolGetAttribute = nullptr;
    EXPECT_FALSE(PoolBackend::supported(driver, kOrdinal)) << missing;
  }
}

TEST_F(PoolRefusalTest, NothingIsFreedInAContextThatCannotBeMadeCurrent) {
  Device& device = make({"CUPOOL_BACKEND=malloc"});
  const CUdeviceptr address = allocate(device, kMiB);
  SmallChunk& chunk = context_->small_chunk();
  chunk.open();
  ASSERT_TRUE(chunk.is_open());
  size_t free = 0;
  size_t total = 0;
  ASSERT_EQ(driver_.cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
  EXPECT_TRUE(chunk.may_decide(free + 1));
  EXPECT_FALSE(chunk.may_decide(free / kMiB / 2 * 2 * kMiB)) << "there is room without it";
  scopes_refused = true;
  EXPECT_FALSE(release(device, BlockSource::malloc, address));
  EXPECT_FALSE(chunk.may_decide(free + 1));
  EXPECT_FALSE(chunk.close());
  EXPECT_EQ(plain_frees, 0);
  scopes_refused = false;
  EXPECT_TRUE(release(device, BlockSource::malloc, address));
  EXPECT_EQ(plain_frees, 1);
}

TEST_F(PoolRefusalTest, AChunkIsClosedByTheDriversFreeAlone) {
  make();
  SmallChunk& chunk = context_->small_chunk();
  EXPECT_FALSE(chunk.close()) << "there is none";
  EXPECT_EQ(plain_frees, 0);
  chunk.open();
  free_answer = CUDA_ERROR_UNKNOWN;
  EXPECT_FALSE(chunk.close());
  free_answer = CUDA_SUCCESS;
  chunk.open();
  EXPECT_TRUE(chunk.close());
  driver_.cuMemGetInfo_v2 = [](std::size_t*, std::size_t*) { return CUDA_ERROR_UNKNOWN; };
  EXPECT_FALSE(chunk.may_decide(1)) << "the driver does not say what is free";
  EXPECT_FALSE(chunk.may_decide(0));
}

}  // namespace
}  // namespace cupool::engine
