// SPDX-License-Identifier: Apache-2.0
// A device's default pool alone, on the fake driver: when it is kept, what decay leaves, and what
// the program reads.
#include "engine/backend/default_pool.h"

#include "engine_device_fixture.h"

namespace cupool::engine {
namespace {

class DefaultPoolTest : public DeviceTest {
 protected:
  DefaultPool& kept(std::initializer_list<const char*> options = {}) {
    DefaultPool& pool = make(options).default_pool();
    EXPECT_TRUE(pool.keep(nullptr));
    return pool;
  }
  CUmemoryPool handle() {
    CUmemoryPool pool = nullptr;
    test::fake::default_pool(&pool, kOrdinal);
    return pool;
  }
  test::FakePools::Pool& state() { return test::pools->pools.at(handle()); }
  CUdeviceptr take(std::uint64_t bytes) {
    CUdeviceptr address = 0;
    test::fake::allocate_from_pool(&address, bytes, handle(), nullptr);
    return address;
  }
  void use(std::uint64_t bytes) { test::fake::free_to_pool(take(bytes), nullptr); }
  // As the program reads it.
  static std::uint64_t read(DefaultPool& pool, CUmemPool_attribute attribute) {
    cuuint64_t value = 1;
    EXPECT_EQ(pool.get_attribute(attribute, &value), CUDA_SUCCESS);
    return value;
  }
  static void step(DefaultPool& pool) {
    pool.end_step();
    while (pool.trim_unneeded(64 * kMiB).more) {
    }
  }
};

TEST_F(DefaultPoolTest, IsKeptAfterTheProgramsFirstAllocation) {
  DefaultPool& pool = make().default_pool();
  EXPECT_FALSE(pool.is_kept());
  EXPECT_TRUE(pool.may_keep(nullptr));
  EXPECT_TRUE(pool.keep(nullptr));
  EXPECT_TRUE(pool.is_kept());
  EXPECT_FALSE(pool.may_keep(nullptr));
  EXPECT_FALSE(pool.keep(nullptr));
  EXPECT_EQ(state().threshold, kTotal);
  EXPECT_EQ(read(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0u);
}

TEST_F(DefaultPoolTest, IsKeptUpToTheSetThreshold) {
  kept({"CUPOOL_RELEASE_THRESHOLD=25%"});
  EXPECT_EQ(state().threshold, kTotal / 4);
}

TEST_F(DefaultPoolTest, IsLeftAloneByTheSettingsAndByOldDrivers) {
  for (const char* setting :
       {"CUPOOL_ASYNC=off", "CUPOOL_RELEASE_THRESHOLD=0", "CUPOOL_POOL=default"}) {
    DefaultPool& pool = make({setting}).default_pool();
    EXPECT_FALSE(pool.may_keep(nullptr)) << setting;
    EXPECT_FALSE(pool.keep(nullptr)) << setting;
  }
  EXPECT_TRUE(make({"CUPOOL_BACKEND=malloc"}).default_pool().may_keep(nullptr));
  driver_.cuDeviceGetMemPool = nullptr;
  EXPECT_FALSE(make().default_pool().may_keep(nullptr));
}

TEST_F(DefaultPoolTest, IsNotConcernedByOtherPools) {
  CUmemoryPool other = nullptr;
  CUmemPoolProps properties{};
  properties.location.id = kOrdinal;
  test::fake::create_pool(&other, &properties);
  DefaultPool& pool = make().default_pool();
  EXPECT_FALSE(pool.keep(other));
  EXPECT_FALSE(pool.may_keep(other)) << "by then the handle is known";
  test::pools->currents[kOrdinal] = other;
  EXPECT_FALSE(pool.keep(nullptr));
  EXPECT_EQ(state().threshold, 0u);
  EXPECT_TRUE(pool.may_keep(handle()));
  EXPECT_TRUE(pool.keep(handle()));
}

TEST_F(DefaultPoolTest, IsTheProgramsOnceItWasSet) {
  DefaultPool& pool = make().default_pool();
  handle();
  state().threshold = 5;
  EXPECT_FALSE(pool.keep(nullptr));
  EXPECT_FALSE(pool.may_keep(nullptr));
  EXPECT_EQ(state().threshold, 5u);
}

TEST_F(DefaultPoolTest, IsTheProgramsOnceItWasClaimed) {
  test::pools->next_handle = 0x5000;  // claims last as long as the process
  DefaultPool& pool = make().default_pool();
  DefaultPool::claim(handle());
  DefaultPool::claim(handle());
  EXPECT_FALSE(pool.keep(nullptr));
  EXPECT_EQ(state().threshold, 0u);
}

// As a synchronisation would have left it.
TEST_F(DefaultPoolTest, IsGivenBackAsTheDriverWouldHaveIt) {
  DefaultPool& pool = kept();
  take(kMiB);
  use(10 * kStep);
  pool.leave();
  EXPECT_FALSE(pool.is_kept());
  EXPECT_EQ(state().threshold, 0u);
  EXPECT_EQ(state().reserved, kMiB) << "of the fake pool, all that is idle";
  EXPECT_EQ(pool.trim(), 0u);
  EXPECT_FALSE(pool.keep(nullptr));
}

TEST_F(DefaultPoolTest, IsLeftIfItsThresholdWasChangedUnseen) {
  DefaultPool& pool = kept();
  use(4 * kStep);
  state().threshold = 7;
  EXPECT_EQ(pool.trim(), 0u);
  EXPECT_FALSE(pool.is_kept());
  EXPECT_EQ(state().reserved, 4 * kStep);
  EXPECT_EQ(read(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 7u);
  pool.leave();
  EXPECT_EQ(state().threshold, 7u);
}

// Contracts 4 and 5.
TEST_F(DefaultPoolTest, CountsAndTrimsWhatIsIdle) {
  DefaultPool& pool = kept();
  use(4 * kStep);
  EXPECT_EQ(pool.fill().idle_bytes(), 4 * kStep);
  take(kMiB);
  EXPECT_EQ(pool.fill().idle_bytes(), 3 * kStep - kMiB) << "one step stays with what is in use";
  EXPECT_EQ(pool.trim(), 4 * kStep - kMiB);
  EXPECT_EQ(pool.fill().idle_bytes(), 0u);
}

// Contract 5. Any step may have a block in use, or one that the GPU still uses: what is free is
// known after a trim only, and by the driver.
TEST_F(DefaultPoolTest, HasToBeTrimmedToTellWhatIsFree) {
  DefaultPool& pool = kept();
  use(4 * kStep);
  EXPECT_TRUE(pool.fill().is_unclear()) << "nothing is in use, but the GPU may still use it";
  const CUdeviceptr block = take(kMiB);
  state().fragments = 2 * kStep - kMiB;
  EXPECT_TRUE(pool.fill().is_unclear());
  EXPECT_EQ(pool.trim(), 2 * kStep);
  state().fragments = 0;
  test::fake::free_to_pool(block, nullptr);
  EXPECT_TRUE(pool.fill().is_unclear());
  pool.trim();
  EXPECT_FALSE(pool.fill().is_unclear());
}

// Decay looks at a device by its contexts only.
TEST_F(DefaultPoolTest, IsTrimmedWhenNoContextIsLeft) {  // contract 10
  DefaultPool& pool = kept();
  use(4 * kStep);
  pool.contexts_gone();
  EXPECT_EQ(state().reserved, 0u);
  EXPECT_TRUE(pool.is_kept());
}

TEST_F(DefaultPoolTest, IsGivenUpIfItCannotBeTrimmedWithoutAContext) {
  DefaultPool& pool = kept();
  use(4 * kStep);
  test::pools->trim_result = CUDA_ERROR_INVALID_CONTEXT;
  pool.contexts_gone();
  EXPECT_FALSE(pool.is_kept());
  EXPECT_EQ(state().threshold, 0u) << "the next synchronisation gives it back";
}

TEST_F(DefaultPoolTest, IsForgottenIfTheDeviceGetsAnother) {
  DefaultPool& pool = kept();
  use(4 * kStep);
  step(pool);
  const CUmemoryPool old = handle();
  test::pools->defaults.erase(kOrdinal);
  const CUmemoryPool now = handle();
  test::pools->pools.erase(old);  // whoever names it now ends the test
  pool.contexts_gone();
  EXPECT_FALSE(pool.is_kept());
  EXPECT_EQ(pool.handle(), now);
  EXPECT_EQ(read(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 0u);
  EXPECT_EQ(pool.trim(), 0u);
  pool.end_step();
  EXPECT_EQ(state().threshold, 0u);
  EXPECT_TRUE(pool.keep(nullptr));
  EXPECT_EQ(state().threshold, kTotal);
}

TEST_F(DefaultPoolTest, IsTheProgramsIfTheDriverDoesNotNameItAnyMore) {
  DefaultPool& pool = kept();
  use(4 * kStep);
  driver_.cuDeviceGetDefaultMemPool = [](CUmemoryPool*, CUdevice) {
    return CUDA_ERROR_INVALID_DEVICE;
  };
  test::pools->pools.clear();
  pool.contexts_gone();
  EXPECT_FALSE(pool.is_kept());
}

TEST_F(DefaultPoolTest, DecaysToTheMostThatWasInUse) {
  DefaultPool& pool = kept();
  use(10 * kStep);
  use(2 * kStep);
  for (int i = 0; i < 4; ++i) {
    step(pool);
    EXPECT_EQ(state().reserved, 10 * kStep) << "the span is not over";
    use(2 * kStep);
  }
  step(pool);
  EXPECT_EQ(state().reserved, 2 * kStep);
  EXPECT_FALSE(pool.trim_unneeded(64 * kMiB).any);
  for (int i = 0; i < 4; ++i) step(pool);
  EXPECT_EQ(state().reserved, 0u);
}

// What decay resets is not the program's to miss.
TEST_F(DefaultPoolTest, TellsTheHighestUseSinceTheProgramsReset) {  // contract 12
  DefaultPool& pool = kept();
  use(8 * kStep);
  step(pool);
  use(2 * kStep);
  EXPECT_EQ(state().high, 2 * kStep);
  EXPECT_EQ(read(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 8 * kStep);
  cuuint64_t zero = 0;
  EXPECT_EQ(pool.set_attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero), CUDA_SUCCESS);
  EXPECT_EQ(read(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 0u);
  use(kStep);
  for (int i = 0; i < 3; ++i) step(pool);
  EXPECT_EQ(read(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), kStep);
  EXPECT_EQ(state().reserved, 8 * kStep);
  step(pool);
  EXPECT_EQ(state().reserved, 2 * kStep) << "what the program reset was needed";
  pool.leave();
  EXPECT_EQ(read(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), kStep);
}

TEST_F(DefaultPoolTest, IsLeftToADriverThatRefuses) {
  driver_.cuMemPoolSetAttribute = [](CUmemoryPool, CUmemPool_attribute, void*) {
    return CUDA_ERROR_NOT_SUPPORTED;
  };
  EXPECT_FALSE(make().default_pool().keep(nullptr));
  driver_.cuMemPoolSetAttribute = test::fake::set_pool_attribute;
  driver_.cuMemPoolGetAttribute = [](CUmemoryPool, CUmemPool_attribute, void*) {
    return CUDA_ERROR_NOT_SUPPORTED;
  };
  EXPECT_FALSE(make().default_pool().keep(nullptr));
  EXPECT_EQ(state().threshold, 0u);
}

}  // namespace
}  // namespace cupool::engine
