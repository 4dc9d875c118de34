// SPDX-License-Identifier: Apache-2.0
// What becomes of memory once the engine has stepped aside: it goes back, and what is freed later
// is waited for by a free of the driver's own (docs/design.md, Engine).
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "engine_fast_path_fixture.h"

namespace cupool::engine {
namespace {

class StepAsideTest : public FastPathTest {
 protected:
  static constexpr std::uint64_t kBlock = 64 << 10;

  void SetUp() override {
    current_ = nullptr;
    failed_ = CUDA_SUCCESS;
    FastPathTest::SetUp();
  }
  cuda::Driver make_driver() override {
    cuda::Driver driver = FastPathTest::make_driver();
    driver.cuCtxGetCurrent = [](CUcontext* context) {
      *context = current_ == nullptr ? test::fake::context() : current_;
      return CUDA_SUCCESS;
    };
    driver.cuCtxPushCurrent_v2 = [](CUcontext context) {
      below_ = std::exchange(current_, context);
      return CUDA_SUCCESS;
    };
    driver.cuCtxPopCurrent_v2 = [](CUcontext* context) {
      *context = std::exchange(current_, below_);
      return CUDA_SUCCESS;
    };
    driver.cuMemFree_v2 = [](CUdeviceptr address) {
      return failed_ == CUDA_SUCCESS ? test::fake::free(address) : failed_;
    };
    return driver;
  }

  static inline CUcontext current_ = nullptr;  // null: the fake driver's
  static inline CUcontext below_ = nullptr;
  static inline CUresult failed_ = CUDA_SUCCESS;
};

// What is done with the memory is not known any more: the driver is asked when it is unused, and
// that only where somebody needs it.
TEST_F(StepAsideTest, WhatIsFreedAfterTheEngineStoppedServingWaitsForTheDriver) {
  start({{"CUPOOL_MAX_CACHED", "0"}});
  const std::vector<CUdeviceptr> live = allocate_several(300, kBlock);
  allocator_->step_aside().stop_serving("a test");
  const std::uint64_t fences = gpu.recorded.load();
  free_all(live);
  allocator_->synchronization().of_context(context_, Synchronization::Failure::counted,
                                           [] { return CUDA_SUCCESS; });
  EXPECT_EQ(now(Gauge::application_bytes), 0);
  EXPECT_EQ(now(Gauge::retired_bytes), static_cast<std::int64_t>(300 * kBlock));
  expect_identity();
  Patience patience;
  allocator_->out_of_memory().give_back_idle(*context_, patience);
  EXPECT_EQ(now(Gauge::held_bytes), 0);
  EXPECT_EQ(gpu.recorded.load(), fences) << "no fence covers what is not known";
  expect_identity();
}

// And where frees wait, it is asked at once, and nothing is handed out again.
TEST_F(StepAsideTest, AFreeWaitsAfterTheEngineStoppedServing) {
  start({{"CUPOOL_FREE_MODE", "auto"}});
  gpu.work.store(Work::held);
  const CUdeviceptr address = allocate(kBlock);
  allocator_->step_aside().stop_serving("a test");
  EXPECT_EQ(context_->ordering().epochs().pending_bytes(), 0u);
  const std::uint64_t frees = gpu.frees.load();
  free(address);
  EXPECT_EQ(gpu.frees.load(), frees + 2) << "of spare memory, and then of the block";
  EXPECT_EQ(now(Gauge::held_bytes), 0);
  EXPECT_EQ(allocator_->frees().try_free(address), std::nullopt) << "it is the driver's";
  CUdeviceptr served = 0;
  Patience patience;
  EXPECT_EQ(allocator_->allocations().try_allocate(kBlock, &served, patience), std::nullopt);
}

// Another context has failed, or is one that has ended.
TEST_F(StepAsideTest, AnErrorOfTheCurrentContextIsNotThatOfTheMemory) {  // I7
  start({{"CUPOOL_FREE_MODE", "auto"}});
  const CUdeviceptr address = allocate(kBlock);
  allocator_->step_aside().stop_serving("a test");
  current_ = reinterpret_cast<CUcontext>(0x99000);
  failed_ = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  EXPECT_EQ(allocator_->frees().try_free(address), failed_);
  EXPECT_TRUE(context_->usable()) << "later frees of its memory would not wait";
  current_ = nullptr;
  failed_ = CUDA_SUCCESS;
  EXPECT_EQ(allocator_->frees().try_free(address), CUDA_SUCCESS) << "the driver freed nothing";
  EXPECT_EQ(now(Gauge::held_bytes), 0);
}

// What is idle, and what was freed before, goes back before the call that the engine does not know.
TEST_F(StepAsideTest, NothingIdleIsKeptWhenTheEngineStopsServing) {
  for (const char* mode : {"auto", "ordered"}) {
    SCOPED_TRACE(mode);
    start({{"CUPOOL_FREE_MODE", mode}});
    free_all(allocate_several(300, kBlock));
    in_thread([&] { pairs(1000, kBlock); });
    EXPECT_GT(now(Gauge::held_bytes), 0);
    allocator_->step_aside().stop_serving("a test");
    EXPECT_EQ(now(Gauge::held_bytes), 0);
    expect_identity();
  }
}

// Freed and still in use: waited for, but not without end, and never in `ordered` mode.
TEST_F(StepAsideTest, SteppingAsideWaitsForWhatWasFreedBefore) {
  start({{"CUPOOL_FREE_MODE", "auto"}});
  gpu.work.store(Work::timed);
  gpu.takes_ns.store(20'000'000);
  free_all(allocate_several(300, kBlock));
  allocator_->step_aside().stop_serving("a test");
  EXPECT_EQ(now(Gauge::held_bytes), 0);

  start({{"CUPOOL_FREE_MODE", "ordered"}});
  gpu.work.store(Work::held);
  free_all(allocate_several(300, kBlock));
  allocator_->step_aside().stop_serving("a test");
  EXPECT_EQ(now(Gauge::retired_bytes), static_cast<std::int64_t>(300 * kBlock));
  Patience patience;
  allocator_->out_of_memory().give_back_idle(*context_, patience);
  EXPECT_EQ(now(Gauge::held_bytes), 0);
  expect_identity();
}

}  // namespace
}  // namespace cupool::engine
