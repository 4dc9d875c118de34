// SPDX-License-Identifier: Apache-2.0
// Page-locked memory that kernels reach, from the request for its device pointer to its end
// (contract 2).
#include "engine/serve/pass_through.h"

#include <gtest/gtest.h>

#include "engine_fast_path_fixture.h"

namespace cupool::engine {
namespace {

// Page-locked memory of 4 KiB each; its device pointers are its host pointers.
class ZeroCopyTest : public FastPathTest {
 protected:
  void SetUp() override {
    FastPathTest::SetUp();
    start({{"CUPOOL_FREE_MODE", "auto"}});
  }
  cuda::Driver make_driver() override {
    cuda::Driver driver = test::fake_driver();
    mapped = CUDA_SUCCESS;
    driver.cuMemHostGetDevicePointer_v2 = [](CUdeviceptr* device, void* host, unsigned int) {
      *device = reinterpret_cast<CUdeviceptr>(host);
      return mapped;
    };
    driver.cuPointerGetAttribute = [](void* value, CUpointer_attribute, CUdeviceptr address) {
      *static_cast<CUdeviceptr*>(value) = address & ~CUdeviceptr{0xfff};
      return CUDA_SUCCESS;
    };
    return driver;
  }
  PassThrough& pass_through() { return allocator_->pass_through(); }
  bool frees_wait() {
    const FreePolicy::Wait wait = allocator_->policy().wait_of(*context_);
    EXPECT_TRUE(wait.what == FreePolicy::Wait::For::nothing ||
                wait.reason == Counter::free_waits_zero_copy_total);
    return wait.what == FreePolicy::Wait::For::context;
  }
  static inline CUresult mapped = CUDA_SUCCESS;
  static constexpr CUdeviceptr kStart = 0x5000;
  void* const host_ = reinterpret_cast<void*>(kStart);
};

TEST_F(ZeroCopyTest, FreesWaitWhileKernelsReachIt) {
  EXPECT_FALSE(frees_wait());
  pass_through().zero_copy_requested(kStart + 0x10);
  EXPECT_TRUE(frees_wait());
  EXPECT_TRUE(pass_through().is_zero_copy(kStart + 0x20)) << "it is one allocation";
  EXPECT_FALSE(pass_through().is_zero_copy(kStart + 0x1000));
  pass_through().zero_copy_requested(kStart + 0x20);
  const auto free = [&] {
    EXPECT_FALSE(frees_wait()) << "another thread may get the address at once";
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(pass_through().free_host(host_, free), CUDA_SUCCESS);
  EXPECT_FALSE(frees_wait());
  EXPECT_FALSE(pass_through().is_zero_copy(kStart));
}

TEST_F(ZeroCopyTest, WhatTheDriverDoesNotFreeStays) {
  pass_through().zero_copy_requested(kStart);
  const auto refuse = [] { return CUDA_ERROR_INVALID_VALUE; };
  EXPECT_EQ(pass_through().free_host(host_, refuse), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(pass_through().unregister_host(host_, refuse), CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(frees_wait());
  mapped = CUDA_ERROR_INVALID_VALUE;
  EXPECT_EQ(pass_through().unregister_host(host_, [] { return CUDA_SUCCESS; }), CUDA_SUCCESS);
  EXPECT_TRUE(frees_wait()) << "memory without a device pointer is another one";
  mapped = CUDA_SUCCESS;
  EXPECT_EQ(pass_through().unregister_host(host_, [] { return CUDA_SUCCESS; }), CUDA_SUCCESS);
  EXPECT_FALSE(frees_wait());
}

// The address itself is known, where the thread has no context in which to ask.
TEST_F(ZeroCopyTest, EndsInAThreadWithoutAContext) {
  pass_through().zero_copy_requested(kStart);
  mapped = CUDA_ERROR_INVALID_CONTEXT;
  EXPECT_EQ(pass_through().unregister_host(host_, [] { return CUDA_SUCCESS; }), CUDA_SUCCESS);
  EXPECT_FALSE(frees_wait());
}

TEST_F(ZeroCopyTest, MemoryOfCupoolsOwnIsNotTheProgramsToFree) {
  const CUdeviceptr internal = gpu.next_address;
  context_->small_chunk().open();
  unsigned calls = 0;
  const auto free = [&] {
    ++calls;
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(pass_through().free_host(reinterpret_cast<void*>(internal), free),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(calls, 0u);
  EXPECT_EQ(pass_through().free_host(host_, free), CUDA_SUCCESS);
  EXPECT_EQ(calls, 1u);
}

}  // namespace
}  // namespace cupool::engine
