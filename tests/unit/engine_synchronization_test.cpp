// SPDX-License-Identifier: Apache-2.0
// The program's own wait for a stream: frees wait for none of its copies again (contract 2).
#include "engine/serve/synchronization.h"

#include <gtest/gtest.h>

#include "engine_fast_path_fixture.h"

namespace cupool::engine {
namespace {

class SynchronizationTest : public FastPathTest {
 protected:
  void SetUp() override {
    FastPathTest::SetUp();
    start({{"CUPOOL_FREE_MODE", "auto"}});
    gpu.work.store(Work::held);
  }
  CUresult wait(CUstream stream, CUresult result = CUDA_SUCCESS) {
    return allocator_->synchronization().of_stream(stream, [&] { return result; });
  }
  bool pending() { return context_->host_work().maybe_pending(); }
  CUstream const stream_ = reinterpret_cast<CUstream>(0x10000);
  CUstream const other_ = reinterpret_cast<CUstream>(0x20000);
};

TEST_F(SynchronizationTest, AWaitForAStreamCoversItsCopies) {
  EXPECT_TRUE(allocator_->policy().waits_for_host_work());
  context_->host_work().submitted(stream_);
  EXPECT_EQ(wait(stream_, CUDA_ERROR_NOT_PERMITTED), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_TRUE(pending()) << "it has not waited";
  EXPECT_EQ(wait(other_), CUDA_SUCCESS);
  EXPECT_TRUE(pending()) << "of another stream";
  EXPECT_EQ(wait(stream_), CUDA_SUCCESS);
  EXPECT_FALSE(pending());
}

TEST_F(SynchronizationTest, ACopySubmittedDuringTheWaitIsNotCovered) {
  context_->host_work().submitted(stream_);
  const auto submits = [&] {
    context_->host_work().submitted(stream_);
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(allocator_->synchronization().of_stream(stream_, submits), CUDA_SUCCESS);
  EXPECT_TRUE(pending());
}

TEST_F(SynchronizationTest, AWaitForTheLegacyStreamCoversTheContext) {
  if (!LegacyStream::covers_context()) GTEST_SKIP() << "the process has a non-blocking stream";
  context_->host_work().submitted(stream_);
  EXPECT_EQ(wait(CU_STREAM_LEGACY), CUDA_SUCCESS);
  EXPECT_FALSE(pending());
}

// From then on the driver is asked instead of what is known here.
TEST_F(SynchronizationTest, AWaitDuringWhichCupoolStepsAsideCoversNothing) {
  if (!LegacyStream::covers_context()) GTEST_SKIP() << "the process has a non-blocking stream";
  context_->host_work().submitted(stream_);
  const auto steps_aside = [] {
    Serving::step_aside();
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(allocator_->synchronization().of_stream(CU_STREAM_LEGACY, steps_aside), CUDA_SUCCESS);
  EXPECT_TRUE(pending());
  Serving::start();
}

// The legacy stream does not wait for its work. For good, so this is the last test of its kind.
TEST_F(SynchronizationTest, AWaitDuringWhichANonBlockingStreamComesCoversNothing) {
  if (!LegacyStream::covers_context()) GTEST_SKIP() << "the process has a non-blocking stream";
  context_->host_work().submitted(stream_);
  const auto creates = [] {
    LegacyStream::creates(CU_STREAM_NON_BLOCKING);
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(allocator_->synchronization().of_stream(CU_STREAM_LEGACY, creates), CUDA_SUCCESS);
  EXPECT_TRUE(pending());
}

TEST_F(SynchronizationTest, AWaitOutsideOfServedContextsIsTheDrivers) {
  driver_->cuCtxGetCurrent = [](CUcontext* current) {
    *current = nullptr;
    return CUDA_SUCCESS;
  };
  ContextRegistry::current_may_change();
  EXPECT_EQ(wait(stream_), CUDA_SUCCESS);
  EXPECT_EQ(wait(CU_STREAM_LEGACY, CUDA_ERROR_NOT_PERMITTED), CUDA_ERROR_NOT_PERMITTED);
  ContextRegistry::current_may_change();
}

}  // namespace
}  // namespace cupool::engine
