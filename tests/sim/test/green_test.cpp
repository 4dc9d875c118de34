// SPDX-License-Identifier: Apache-2.0
// Green contexts: what they share with their primary context, and which waits cover their work.
// Rules: CUDA Driver API, Green Contexts; cuda.h, cuCtxSynchronize, cuCtxRecordEvent;
// docs/measurements/2026-11-23-h100-driver-facts.txt.
#include "fixture.h"

#include <thread>

namespace cupool::sim::test {

class Green : public JudgedSim {
 protected:
  void SetUp() override {
    JudgedSim::SetUp();
    CUdevResource all{};
    ASSERT_EQ(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
    CUdevResource parts[2]{};
    unsigned count = 2;
    ASSERT_EQ(cuDevSmResourceSplitByCount(parts, &count, &all, nullptr, 0, 60), CUDA_SUCCESS);
    ASSERT_EQ(count, 2u);
    CUdevResourceDesc description = nullptr;
    ASSERT_EQ(cuDevResourceGenerateDesc(&description, parts, 1), CUDA_SUCCESS);
    ASSERT_EQ(cuGreenCtxCreate(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM),
              CUDA_SUCCESS);
    ASSERT_EQ(cuCtxFromGreenCtx(&converted, green), CUDA_SUCCESS);
  }
  void TearDown() override {
    cuGreenCtxDestroy(green);
    JudgedSim::TearDown();
  }

  CUstream green_stream() {
    CUstream made = nullptr;
    EXPECT_EQ(cuGreenCtxStreamCreate(&made, green, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    return made;
  }

  CUgreenCtx green = nullptr;
  CUcontext converted = nullptr;
};

TEST_F(Green, MemoryAndCodeArePrimaryButTheHandleIsItsOwn) {
  EXPECT_NE(converted, context);
  ASSERT_EQ(cuCtxSetCurrent(converted), CUDA_SUCCESS);
  CUcontext seen = nullptr;
  ASSERT_EQ(cuCtxGetCurrent(&seen), CUDA_SUCCESS);
  EXPECT_EQ(seen, converted);
  unsigned long long own = 0;
  unsigned long long primary = 0;
  ASSERT_EQ(cuCtxGetId(nullptr, &own), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxGetId(context, &primary), CUDA_SUCCESS);
  EXPECT_NE(own, primary);
  const CUdeviceptr p = alloc(4);
  ASSERT_EQ(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_CONTEXT, p), CUDA_SUCCESS);
  EXPECT_EQ(seen, context);
  ASSERT_EQ(stamp(nullptr, p, 1, 7), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 7u);
  ASSERT_EQ(cuCtxPopCurrent(&seen), CUDA_SUCCESS);
  EXPECT_EQ(seen, converted);
}

TEST_F(Green, AStreamTellsBothContexts) {
  const CUstream s = green_stream();
  CUcontext of = nullptr;
  ASSERT_EQ(cuStreamGetCtx(s, &of), CUDA_SUCCESS);
  EXPECT_EQ(of, converted);
  CUgreenCtx its = nullptr;
  ASSERT_EQ(cuStreamGetCtx_v2(s, &of, &its), CUDA_SUCCESS);
  EXPECT_EQ(of, context);
  EXPECT_EQ(its, green);
  ASSERT_EQ(cuStreamGetGreenCtx(s, &its), CUDA_SUCCESS);
  EXPECT_EQ(its, green);
  ASSERT_EQ(cuStreamGetGreenCtx(stream(), &its), CUDA_SUCCESS);
  EXPECT_EQ(its, nullptr);
}

TEST_F(Green, ThePrimaryContextsWaitsCoverIt) {
  const CUdeviceptr p = alloc(16);
  const CUstream gone = green_stream();
  ASSERT_EQ(stamp(green_stream(), p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(stamp(gone, p + 4, 1, 2), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamDestroy(gone), CUDA_SUCCESS);
  const CUevent e = event();
  ASSERT_EQ(cuCtxRecordEvent(context, e), CUDA_SUCCESS);
  ASSERT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 1u);
  EXPECT_EQ(word(p + 4), 2u);
  ASSERT_EQ(stamp(green_stream(), p, 1, 3), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 3u);
  ASSERT_EQ(stamp(green_stream(), p, 1, 4), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFree(alloc(4)), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 4u);
}

TEST_F(Green, ItsOwnWaitsCoverNothingElse) {
  const CUdeviceptr p = alloc(16);
  const CUstream gone = green_stream();
  ASSERT_EQ(stamp(stream(), p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(stamp(gone, p + 4, 1, 2), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamDestroy(gone), CUDA_SUCCESS);
  const CUevent e = event();
  ASSERT_EQ(cuGreenCtxRecordEvent(green, e), CUDA_SUCCESS);
  ASSERT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 0u);
  EXPECT_EQ(word(p + 4), 2u);
  ASSERT_EQ(cuCtxSetCurrent(converted), CUDA_SUCCESS);
  std::thread([&] {
    cuCtxSetCurrent(converted);
    EXPECT_EQ(stamp(CU_STREAM_PER_THREAD, p + 8, 1, 3), CUDA_SUCCESS);
  }).join();
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 0u);
  EXPECT_EQ(word(p + 8), 3u);
  EXPECT_EQ(complaints(), 0u);
  cupoolSimHostAccess(pointer(p), 4, 0);
  EXPECT_EQ(complaints(), 1u) << "the primary context's work is not covered";
}

// "Once the green context is destroyed, any subsequent API calls involving these streams (including
// cuStreamDestroy) will return CUDA_ERROR_CONTEXT_IS_DESTROYED."
TEST_F(Green, WhenItEndsItsStreamsAreOfNoUse) {
  const CUdeviceptr p = alloc(4);
  const CUstream s = green_stream();
  ASSERT_EQ(stamp(s, p, 1, 5), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(converted), CUDA_SUCCESS);
  ASSERT_EQ(cuGreenCtxDestroy(green), CUDA_SUCCESS);
  EXPECT_EQ(cuGreenCtxDestroy(green), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(cuStreamDestroy(s), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 5u) << "its work is the primary context's all the same";
}

TEST_F(Green, ItKeepsThePrimaryContextAlive) {
  ASSERT_EQ(cuDevicePrimaryCtxRelease(device), CUDA_SUCCESS);
  unsigned flags = 0;
  int active = 0;
  ASSERT_EQ(cuDevicePrimaryCtxGetState(device, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 1);
  ASSERT_EQ(cuGreenCtxDestroy(green), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxGetState(device, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 0);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
}

TEST_F(Green, WhatIsNoPartOfADeviceIsRefused) {
  CUgreenCtx none = nullptr;
  EXPECT_EQ(cuGreenCtxCreate(&none, nullptr, device, CU_GREEN_CTX_DEFAULT_STREAM),
            CUDA_ERROR_INVALID_VALUE);
  CUdevResource all{};
  EXPECT_EQ(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_INVALID),
            CUDA_ERROR_INVALID_RESOURCE_TYPE);
  CUstream s = nullptr;
  EXPECT_EQ(cuGreenCtxStreamCreate(&s, green, CU_STREAM_DEFAULT, 0), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace cupool::sim::test
