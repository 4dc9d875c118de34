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
    EXPECT_FALSE(pass_through().is_zero_copy(kStart)) << "another thread may get the address";
    EXPECT_TRUE(frees_wait()) << "the driver may just wait for kernels that reach it";
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

// Memory of the driver's own, at addresses that the test chooses.
class PassedMemoryTest : public FastPathTest {
 protected:
  static constexpr CUdeviceptr kAddress = 0x9000;
  static constexpr std::uint64_t kBytes = 4096;

  PassThrough& pass_through() { return allocator_->pass_through(); }
  CUresult allocate_at(CUdeviceptr address, std::uint64_t bytes) {
    Patience patience;
    return pass_through().allocate(
        bytes, [&] { return bytes; }, &address, patience, [] { return CUDA_SUCCESS; });
  }
  CUresult free_as(CUdeviceptr address, CUresult answer) {
    asked_ = 0;
    return pass_through().free(address, [&] {
      ++asked_;
      return answer;
    });
  }
  std::int64_t passed() { return now(Gauge::passthrough_bytes); }
  int asked_ = 0;
};

TEST_F(PassedMemoryTest, AnAddressThatComesAgainIsTheNewOwners) {
  EXPECT_EQ(allocate_at(kAddress, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(allocate_at(kAddress, 2 * kBytes), CUDA_SUCCESS) << "it was freed unseen";
  EXPECT_EQ(passed(), static_cast<std::int64_t>(2 * kBytes));
  EXPECT_EQ(free_as(kAddress, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_EQ(passed(), 0);
}

TEST_F(PassedMemoryTest, WhatTheDriverDoesNotFreeStaysCounted) {
  EXPECT_EQ(allocate_at(kAddress, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(free_as(kAddress, CUDA_ERROR_UNKNOWN), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(passed(), static_cast<std::int64_t>(kBytes));
  EXPECT_EQ(count(Counter::free_rejected_total), 1u);
  // Meanwhile another thread may have got the address.
  EXPECT_EQ(pass_through().free(kAddress,
                                [&] {
                                  allocate_at(kAddress, 3 * kBytes);
                                  return CUDA_ERROR_UNKNOWN;
                                }),
            CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(passed(), static_cast<std::int64_t>(3 * kBytes)) << "that one's alone";
  EXPECT_EQ(free_as(kAddress, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_EQ(allocator_->blocks().find(kAddress), nullptr);
  EXPECT_EQ(passed(), 0);
}

// The same handle may name a new context then, in which it is nobody's.
TEST_F(PassedMemoryTest, MemoryWhoseContextEndsDuringItsFreeIsNotKnownAnyMore) {  // contract 10
  for (const bool revived : {false, true}) {
    EXPECT_EQ(allocate_at(kAddress, kBytes), CUDA_SUCCESS);
    const std::uint64_t lost = count(Counter::context_lost_bytes_total);
    const auto end = [&] {
      allocator_->endings().context_gone(*context_);
      if (revived) allocator_->registry().current();
      return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    };
    EXPECT_EQ(pass_through().free(kAddress, end), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(allocator_->blocks().find(kAddress), nullptr);
    EXPECT_EQ(passed(), 0);
    EXPECT_EQ(count(Counter::context_lost_bytes_total), lost + kBytes);
    ASSERT_EQ(allocator_->registry().current(), context_);
  }
}

// Another thread got the address from cupool meanwhile: it was freed by a route that is not seen.
TEST_F(PassedMemoryTest, ABlockThatHasGotTheAddressStaysOne) {
  EXPECT_EQ(allocate_at(kAddress, kBytes), CUDA_SUCCESS);
  const auto reuse = [&] {
    const std::uint64_t next = gpu.next_address.exchange(kAddress);
    EXPECT_EQ(allocate(kBytes), kAddress);
    gpu.next_address.store(next);
    return CUDA_ERROR_UNKNOWN;
  };
  EXPECT_EQ(pass_through().free(kAddress, reuse), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(passed(), 0);
  const Block* const block = allocator_->blocks().find(kAddress);
  ASSERT_NE(block, nullptr);
  EXPECT_NE(block->source, BlockSource::passed_through);
  free(kAddress);
}

TEST_F(PassedMemoryTest, OnlyItsOwnMemoryIsTaken) {
  const CUdeviceptr block = allocate(kBytes);
  EXPECT_EQ(free_as(block, CUDA_ERROR_INVALID_VALUE), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(asked_, 1);
  EXPECT_NE(allocator_->blocks().find(block), nullptr) << "a block of cupool's stays one";
  // Memory that cupool has for itself the driver would free.
  const CUdeviceptr internal = gpu.next_address;
  context_->small_chunk().open();
  EXPECT_EQ(free_as(internal, CUDA_SUCCESS), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(asked_, 0);
}

TEST_F(PassedMemoryTest, ManagedMemoryEndsWithItsFree) {
  start({{"CUPOOL_FREE_MODE", "auto"}});
  pass_through().managed_allocated(kAddress, kBytes);
  EXPECT_EQ(allocator_->policy().wait_of(*context_).what, FreePolicy::Wait::For::context);
  EXPECT_EQ(free_as(kAddress, CUDA_ERROR_UNKNOWN), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(allocator_->policy().wait_of(*context_).what, FreePolicy::Wait::For::context);
  EXPECT_EQ(free_as(kAddress, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_EQ(allocator_->policy().wait_of(*context_).what, FreePolicy::Wait::For::nothing);
}

// Its blocks come and go in the order of streams, which may be at any time.
TEST_F(PassedMemoryTest, APoolOfManagedMemoryCountsForGood) {
  start({{"CUPOOL_FREE_MODE", "auto"}});
  pass_through().managed_pool_used();
  EXPECT_EQ(allocator_->policy().wait_of(*context_).what, FreePolicy::Wait::For::context);
  // No context is left.
  allocator_->policy().host_reachable().forget(
      [](CUdeviceptr, const HostReachable::Memory&) { return true; });
  EXPECT_EQ(allocator_->policy().wait_of(*context_).what, FreePolicy::Wait::For::context);
}

// I7: the program has seen the error, so no later call hides it.
class StickyPassThroughTest : public FastPathTest {
 protected:
  void SetUp() override {
    FastPathTest::SetUp();
    start({});
  }
  void TearDown() override {
    Lane::reset();
    FastPathTest::TearDown();
  }
  CUresult free_refused() {
    return allocator_->pass_through().free(0x5000, [] { return CUDA_ERROR_LAUNCH_FAILED; });
  }
};

TEST_F(StickyPassThroughTest, AFreeByTheDriverTellsOfTheError) {
  EXPECT_TRUE(context_->usable());
  EXPECT_EQ(free_refused(), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_FALSE(context_->usable());
}

TEST_F(StickyPassThroughTest, AnAllocationByTheDriverTellsOfTheError) {
  Patience patience;
  CUdeviceptr address = 0;
  EXPECT_EQ(allocator_->pass_through().allocate(
                512, [] { return std::uint64_t{512}; }, &address, patience,
                [] { return CUDA_ERROR_LAUNCH_FAILED; }),
            CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_FALSE(context_->usable());
}

TEST_F(StickyPassThroughTest, AnErrorOfAnotherContextIsNotTheCurrentOnes) {
  Lane::context_seen(context_->handle());
  Lane::context_seen(reinterpret_cast<CUcontext>(0x100));
  EXPECT_EQ(free_refused(), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_TRUE(context_->usable()) << "whose own fence is recorded";
}

}  // namespace
}  // namespace cupool::engine
