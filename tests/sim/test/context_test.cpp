// SPDX-License-Identifier: Apache-2.0
// Context events, and the life of contexts.
// Rules: CUDA Driver API, cuCtxRecordEvent and cuCtxWaitEvent;
// docs/measurements/2026-11-22-h200-driver-facts.txt; reset: measured.
#include "fixture.h"

#include <thread>

namespace cupool::sim::test {

using Contexts = Sim;

// "completes after all work of the context: non-blocking, blocking, legacy stream, per-thread
// default streams of every thread, and streams destroyed with work pending."
TEST_F(Contexts, AContextEventCoversEverything) {
  const CUdeviceptr p = alloc(64);
  const CUstream gone = stream();
  ASSERT_EQ(stamp(stream(), p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(stamp(stream(CU_STREAM_DEFAULT), p + 4, 1, 2), CUDA_SUCCESS);
  ASSERT_EQ(stamp(gone, p + 12, 1, 4), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamDestroy(gone), CUDA_SUCCESS);
  std::thread([&] {
    cuCtxSetCurrent(context);
    EXPECT_EQ(stamp(CU_STREAM_PER_THREAD, p + 16, 1, 5), CUDA_SUCCESS);
  }).join();
  const CUevent e = event();
  ASSERT_EQ(cuCtxRecordEvent(context, e), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 1u);
  EXPECT_EQ(word(p + 4), 2u);
  EXPECT_EQ(word(p + 12), 4u);
  EXPECT_EQ(word(p + 16), 5u);
}

TEST_F(Contexts, AContextEventCoversTheLegacyStream) {
  const CUdeviceptr p = alloc(4);
  const CUevent e = event();
  ASSERT_EQ(stamp(nullptr, p, 1, 3), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxRecordEvent(context, e), CUDA_SUCCESS);
  ASSERT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 3u);
}

// "It serialises nothing (work submitted later to other streams runs at once)."
TEST_F(Contexts, AContextEventHoldsNothingBack) {
  const CUdeviceptr p = alloc(8);
  const CUstream a = stream();
  const CUstream b = stream();
  ASSERT_EQ(stamp(a, p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxRecordEvent(context, event()), CUDA_SUCCESS);
  ASSERT_EQ(stamp(b, p + 4, 1, 2), CUDA_SUCCESS);
  ASSERT_EQ(stamp(nullptr, p + 4, 1, 3), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 0u);
  EXPECT_EQ(word(p + 4), 3u);
}

TEST_F(Contexts, AContextEventDoesNotCoverLaterWork) {
  const CUdeviceptr p = alloc(4);
  const CUstream s = stream();
  const CUevent e = event();
  ASSERT_EQ(cuCtxRecordEvent(context, e), CUDA_SUCCESS);
  ASSERT_EQ(stamp(s, p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 0u);
}

// "cuCtxWaitEvent holds back later work of every kind, streams created afterwards included."
TEST_F(Contexts, AContextWaitHoldsBackEveryKindOfStream) {
  for (int kind = 0; kind < 4; ++kind) {
    const CUstream source = stream();
    const CUevent e = event();
    const CUdeviceptr p = alloc(4);
    ASSERT_EQ(stamp(source, p, 1, 1), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(e, source), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxWaitEvent(context, e), CUDA_SUCCESS);
    const CUstream later[] = {stream(), stream(CU_STREAM_DEFAULT), nullptr, CU_STREAM_PER_THREAD};
    ASSERT_EQ(spin(later[kind], 1), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(later[kind]), CUDA_SUCCESS);
    EXPECT_EQ(word(p), 1u) << "kind " << kind;
  }
}

TEST_F(Contexts, AnEventOfAnotherContextIsRefused) {
  const CUevent e = event();
  CUcontext other = nullptr;
  ASSERT_EQ(cuCtxCreate(&other, nullptr, 0, device), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxRecordEvent(other, e), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventRecord(e, stream()), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuCtxDestroy(other), CUDA_SUCCESS);
}

TEST_F(Contexts, SynchronisingCoversDestroyedStreams) {
  const CUdeviceptr p = alloc(4);
  const CUstream s = stream();
  ASSERT_EQ(stamp(s, p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamDestroy(s), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 1u);
}

TEST_F(Contexts, BothFormsOfSynchroniseWork) {
  const CUdeviceptr p = alloc(4);
  void* function = nullptr;
  ASSERT_EQ(cuGetProcAddress("cuCtxSynchronize", &function, 13000, 0, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(stamp(stream(), p, 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(reinterpret_cast<CUresult (*)(CUcontext)>(function)(context), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 1u);
}

TEST_F(Contexts, TheCurrentContextIsAStackPerThread) {
  CUcontext current = nullptr;
  CUcontext other = nullptr;
  ASSERT_EQ(cuCtxCreate(&other, nullptr, 0, device), CUDA_SUCCESS);
  cuCtxGetCurrent(&current);
  EXPECT_EQ(current, other) << "creating pushes";
  CUcontext popped = nullptr;
  ASSERT_EQ(cuCtxPopCurrent(&popped), CUDA_SUCCESS);
  EXPECT_EQ(popped, other);
  cuCtxGetCurrent(&current);
  EXPECT_EQ(current, context);
  std::thread([] {
    CUcontext none = reinterpret_cast<CUcontext>(1);
    cuCtxGetCurrent(&none);
    EXPECT_EQ(none, nullptr);
    CUdeviceptr p = 0;
    EXPECT_EQ(cuMemAlloc(&p, 4), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuMemFree(0), CUDA_SUCCESS) << "as measured, without a context too";
  }).join();
  ASSERT_EQ(cuCtxDestroy(other), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxDestroy(other), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

// Measured with the same H200.
TEST_F(Contexts, AFreeNeedsNoCurrentContext) {
  const CUdeviceptr p = alloc(64);
  const CUdeviceptr q = alloc(64);
  void* pinned = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&pinned, 64, 0), CUDA_SUCCESS);
  ASSERT_EQ(stamp(stream(), q, 1, 3), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(p), CUDA_SUCCESS);
  EXPECT_EQ(word(q), 3u) << "the block's context was waited for";
  EXPECT_EQ(cuMemFree(p), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

TEST_F(Contexts, IdsAreNeverUsedAgain) {
  unsigned long long first = 0;
  unsigned long long second = 0;
  CUcontext a = nullptr;
  CUcontext b = nullptr;
  ASSERT_EQ(cuCtxCreate(&a, nullptr, 0, device), CUDA_SUCCESS);
  cuCtxGetId(a, &first);
  cuCtxDestroy(a);
  ASSERT_EQ(cuCtxCreate(&b, nullptr, 0, device), CUDA_SUCCESS);
  cuCtxGetId(b, &second);
  cuCtxDestroy(b);
  EXPECT_NE(first, second);
}

// "cudaDeviceReset destroys streams but not pools: explicit pools, their blocks and pointers live
// on, and the primary context keeps its handle."
TEST_F(Contexts, ResetTakesStreamsAndLegacyMemoryButNotPools) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
  const CUstream s = stream();
  CUdeviceptr pooled = 0;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&pooled, 4096, pool, s), CUDA_SUCCESS);
  const CUdeviceptr legacy = alloc(1 << 20);
  ASSERT_EQ(stamp(s, pooled, 1, 9), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);

  ASSERT_EQ(cuDevicePrimaryCtxReset(device), CUDA_SUCCESS);
  unsigned flags = 0;
  int active = 1;
  cuDevicePrimaryCtxGetState(device, &flags, &active);
  EXPECT_EQ(active, 0);
  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemAlloc(&p, 4), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  cuuint64_t used = 0;
  EXPECT_EQ(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used), CUDA_SUCCESS);
  EXPECT_EQ(used, 4096u);

  CUcontext again = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&again, device), CUDA_SUCCESS);
  EXPECT_EQ(again, context);
  EXPECT_EQ(word(pooled), 9u);
  EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuMemFree(legacy), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(pooled), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
  cuDevicePrimaryCtxRelease(device);
}

TEST_F(Contexts, ResetGivesTheMemoryBack) {
  const size_t before = free_bytes();
  alloc(100 << 20);
  alloc(1000);
  EXPECT_LT(free_bytes(), before);
  ASSERT_EQ(cuDevicePrimaryCtxReset(device), CUDA_SUCCESS);
  CUcontext again = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&again, device), CUDA_SUCCESS);
  EXPECT_GE(free_bytes(), before);
  cuDevicePrimaryCtxRelease(device);
}

// Contract I7 leans on this: a sticky error answers every call, and a free reports it.
TEST_F(Contexts, AStickyErrorStays) {
  const CUstream s = stream();
  const CUdeviceptr p = alloc(4);
  CUdeviceptr q = 0;
  ASSERT_EQ(launch("trap", s, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&q, 4), CUDA_SUCCESS) << "nobody knows yet";
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuMemAlloc(&q, 4), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuMemFree(p), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuMemFree(0), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuCtxRecordEvent(context, nullptr), CUDA_ERROR_LAUNCH_FAILED);
  // These answer all the same (measured with an H200).
  unsigned type = 0;
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p), CUDA_SUCCESS);
  CUdevice d = -1;
  EXPECT_EQ(cuCtxGetDevice(&d), CUDA_SUCCESS);
  // And a reset cures it.
  ASSERT_EQ(cuDevicePrimaryCtxReset(device), CUDA_SUCCESS);
  CUcontext again = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&again, device), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&q, 4), CUDA_SUCCESS);
  cuDevicePrimaryCtxRelease(device);
}

TEST_F(Contexts, AFreeReportsTheErrorOfTheWorkItWaitsFor) {
  const CUdeviceptr p = alloc(4);
  ASSERT_EQ(launch("trap", stream(), nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(p), CUDA_ERROR_LAUNCH_FAILED);
}

TEST_F(Contexts, AKernelOutsideMemoryFails) {
  const CUstream s = stream();
  const CUdeviceptr p = alloc(2 << 20);
  ASSERT_EQ(cuMemFree(p), CUDA_SUCCESS);
  ASSERT_EQ(stamp(s, p, 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace cupool::sim::test
