// SPDX-License-Identifier: Apache-2.0
// An engine that serves the program's stream-ordered memory, on a driver where each thread may
// enter another context.
#pragma once

#include <atomic>
#include <utility>

#include "engine/reclaim/dependent_launches.h"
#include "engine/serve/async_memory.h"
#include "engine/serve/decay.h"
#include "engine_pool_engine_fixture.h"

namespace cupool::engine {

class AsyncMemoryTest : public PoolEngineTest {
 protected:
  static constexpr std::uint64_t kMany = 48 * (kUnit / 2);  ///< more than a growth step
  static inline std::atomic<CUcontext> current{nullptr};    ///< null: the fake driver's

  static inline thread_local CUcontext pushed = nullptr;

  void SetUp() override {
    PoolEngineTest::SetUp();
    start({{"CUPOOL_ASYNC", "serve"}});
  }
  void TearDown() override {
    PoolEngineTest::TearDown();
    DependentLaunch::reset();
    enter(nullptr);
    start({});  // serves none
  }
  cuda::Driver make_driver() override {
    cuda::Driver driver = PoolEngineTest::make_driver();
    driver.cuCtxGetCurrent = [](CUcontext* context) {
      const CUcontext set = pushed != nullptr ? pushed : current.load();
      *context = set != nullptr ? set : test::fake::context();
      return CUDA_SUCCESS;
    };
    driver.cuCtxPushCurrent_v2 = [](CUcontext context) {
      pushed = context;
      return CUDA_SUCCESS;
    };
    driver.cuCtxPopCurrent_v2 = [](CUcontext* context) {
      *context = std::exchange(pushed, nullptr);
      return CUDA_SUCCESS;
    };
    driver.cuStreamGetCtx = [](CUstream, CUcontext* context) {
      *context = current != nullptr ? current.load() : test::fake::context();
      return CUDA_SUCCESS;
    };
    driver.cuStreamGetFlags = [](CUstream, unsigned* flags) {
      *flags = CU_STREAM_NON_BLOCKING;
      return CUDA_SUCCESS;
    };
    driver.cuStreamQuery = [](CUstream) {
      return gpu.work == Work::held ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    };
    driver.cuStreamWaitEvent = [](CUstream, CUevent, unsigned) { return CUDA_SUCCESS; };
    driver.cuStreamDestroy_v2 = [](CUstream) { return CUDA_SUCCESS; };
    driver.cuEventDestroy_v2 = [](CUevent) { return CUDA_SUCCESS; };
    driver.cuPointerGetAttribute = [](void* value, CUpointer_attribute attribute,
                                      CUdeviceptr address) {
      CUmemoryPool const pool = test::pools->pool_of(address);
      if (attribute != CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE || pool == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      *static_cast<CUmemoryPool*>(value) = pool;
      return CUDA_SUCCESS;
    };
    return driver;
  }
  AsyncMemory& async() { return allocator_->default_pools().async(); }
  auto allocate_by_driver(CUdeviceptr* address, CUstream stream) {
    return [address, stream](std::uint64_t wanted) {
      CUmemoryPool pool = nullptr;
      test::fake::default_pool(&pool, 0);
      return test::fake::allocate_from_pool(address, wanted, pool, stream);
    };
  }
  AsyncMemory::Served allocate_in_stream(std::uint64_t bytes, CUdeviceptr* address) {
    return async().allocate(address, bytes, nullptr, stream_, allocate_by_driver(address, stream_));
  }
  Context* enter(CUcontext context) {
    current = context;
    ContextRegistry::current_may_change();
    return allocator_->registry().current();
  }
  /// Returns the block's address.
  CUdeviceptr leave_idle(std::uint64_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(allocate_in_stream(bytes, &address), AsyncMemory::Served::by_driver);
    EXPECT_EQ(async().try_free(address, stream_), CUDA_SUCCESS);
    EXPECT_GE(async().idle().bytes(context_->device()), bytes);
    return address;
  }
  Decay make_decay() {
    return Decay(*driver_, allocator_->registry(), allocator_->idle(), async().idle());
  }
  // A look of the background thread (process/housekeeping).
  void look(Decay& decay) {
    while (async().idle().give_back_unneeded()) {
    }
    async().idle().end_decay_step();
    while (decay.go_on()) {
    }
  }

  const CUstream stream_ = reinterpret_cast<CUstream>(0x5000);
};

}  // namespace cupool::engine
