// SPDX-License-Identifier: Apache-2.0
// After an error of the device: what the calls of the context answer, what becomes of its pending
// work, and what the judge may still conclude. Rules: invariant I7; cuda.h,
// CUDA_ERROR_LAUNCH_FAILED and CUDA_ERROR_ILLEGAL_ADDRESS ("any further CUDA work will return the
// same error").
#include "fixture.h"

#include <atomic>
#include <functional>
#include <vector>

namespace cupool::sim::test {

class Sticky : public JudgedSim {
 protected:
  void SetUp() override {
    JudgedSim::SetUp();
    s = stream();
  }

  /// Memory that outlives contexts.
  CUdeviceptr pool_block() {
    CUdeviceptr p = 0;
    EXPECT_EQ(cuMemAllocAsync(&p, 4096, s), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
    return p;
  }

  /// Another context of the device, made current, with its own module.
  CUcontext other_context() {
    CUcontext other = nullptr;
    EXPECT_EQ(cuCtxCreate(&other, nullptr, 0, device), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleLoadData(&module, ""), CUDA_SUCCESS);
    return other;
  }

  void trap() {
    ASSERT_EQ(launch("trap", s, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cupoolSimSticky(nullptr), 0) << "nobody knows yet";
    ASSERT_EQ(cuStreamSynchronize(s), CUDA_ERROR_LAUNCH_FAILED);
    ASSERT_EQ(cupoolSimSticky(context), static_cast<int>(CUDA_ERROR_LAUNCH_FAILED));
  }

  CUstream s = nullptr;
};

TEST_F(Sticky, EveryLaterCallAnswersTheError) {
  CUdeviceptr p = alloc(4096);
  CUdeviceptr in_pool = pool_block();
  CUdeviceptr q = 0;
  size_t n = 0;
  size_t pitch = 0;
  void* host = nullptr;
  void* host_too = nullptr;
  char own[64];
  ASSERT_EQ(cuMemHostAlloc(&host, 64, 0), CUDA_SUCCESS);
  CUevent e = event();
  CUstream t = nullptr;
  CUevent f = nullptr;
  CUmodule m = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUipcMemHandle handle;
  CUstreamCaptureStatus status;
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  ASSERT_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  CUfunction kernel = nullptr;
  ASSERT_EQ(cuModuleGetFunction(&kernel, module, "spin_ns"), CUDA_SUCCESS);
  uint64_t ns = 1;
  void* arguments[] = {&ns};
  trap();
  const std::vector<std::function<CUresult()>> calls = {
      [&] { return cuMemAlloc(&q, 64); },
      [&] { return cuMemAllocPitch(&q, &pitch, 64, 2, 4); },
      [&] { return cuMemAllocManaged(&q, 64, CU_MEM_ATTACH_GLOBAL); },
      [&] { return cuMemAllocAsync(&q, 64, s); },
      [&] { return cuMemFree(p); },
      [&] { return cuMemFree(0); },
      [&] { return cuMemFree(in_pool); },
      [&] { return cuMemFree(p + 4); },
      [&] { return cuMemFreeAsync(p, s); },
      [&] { return cuMemFreeAsync(in_pool, s); },
      [&] { return cuMemGetInfo(&n, &pitch); },
      [&] { return cuMemGetAddressRange(&q, &n, p); },
      [&] { return cuMemHostAlloc(&host_too, 64, 0); },
      [&] { return cuMemFreeHost(host); },
      [&] { return cuMemHostRegister(own, sizeof own, 0); },
      [&] { return cuIpcGetMemHandle(&handle, p); },
      [&] { return cuMemsetD8Async(p, 0, 4, s); },
      [&] { return cuMemsetD8(p, 0, 4); },
      [&] { return cuMemcpyDtoH(own, p, 4); },
      [&] { return cuMemcpyHtoDAsync(p, own, 4, s); },
      [&] { return cuMemcpyBatchAsync(&p, &in_pool, &ns, 1, &attributes, &n, 1, s); },
      [&] { return cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, s, arguments, nullptr); },
      [&] {
        return cuLaunchHostFunc(
            s, [](void*) {}, nullptr);
      },
      [&] { return cuStreamCreate(&t, 0); },
      [&] { return cuStreamQuery(s); },
      [&] { return cuStreamSynchronize(s); },
      [&] { return cuStreamSynchronize(nullptr); },
      [&] { return cuStreamWaitEvent(s, e, 0); },
      [&] { return cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED); },
      [&] { return cuStreamIsCapturing(s, &status); },
      [&] { return cuEventCreate(&f, 0); },
      [&] { return cuEventRecord(e, s); },
      [&] { return cuEventQuery(e); },
      [&] { return cuEventSynchronize(e); },
      [&] { return cuCtxSynchronize(); },
      [&] { return cuCtxRecordEvent(context, e); },
      [&] { return cuCtxWaitEvent(context, e); },
      [&] { return cuModuleLoadData(&m, ""); },
      [&] { return cuGraphInstantiate(&exec, graph, 0); },
      [&] { return cuGraphLaunch(exec, s); },
      [&] { return cuEventDestroy(e); },
      [&] { return cuStreamDestroy(s); },
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i](), CUDA_ERROR_LAUNCH_FAILED) << i;
  }
  EXPECT_EQ(cupoolSimPending(), 0u);
  ASSERT_EQ(cuDevicePrimaryCtxReset(device), CUDA_SUCCESS);
  CUcontext again = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&again, device), CUDA_SUCCESS);
  EXPECT_EQ(cupoolSimSticky(again), 0);
  EXPECT_EQ(cuMemFree(p), CUDA_ERROR_INVALID_VALUE) << "it went with the context";
  EXPECT_EQ(cuMemFree(in_pool), CUDA_SUCCESS) << "pools do not";
  cuDevicePrimaryCtxRelease(device);
}

TEST_F(Sticky, SoDoesAnIllegalAddress) {
  const CUdeviceptr p = alloc(2 << 20);
  ASSERT_EQ(cuMemFree(p), CUDA_SUCCESS);
  ASSERT_EQ(stamp(s, p, 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUdeviceptr q = 0;
  EXPECT_EQ(cuMemAlloc(&q, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cupoolSimSticky(context), static_cast<int>(CUDA_ERROR_ILLEGAL_ADDRESS));
}

TEST_F(Sticky, PendingWorkIsCancelled) {
  const CUdeviceptr p = alloc(64);
  static std::atomic<bool> called{false};
  const CUstream t = stream();
  ASSERT_EQ(stamp(t, p, 1, 5), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchHostFunc(
                t, [](void*) { called = true; }, nullptr),
            CUDA_SUCCESS);
  trap();
  EXPECT_EQ(cupoolSimPending(), 0u);
  EXPECT_EQ(word(p), 0u);
  EXPECT_FALSE(called);
}

TEST_F(Sticky, OtherContextsGoOn) {
  trap();
  other_context();
  const CUdeviceptr p = alloc(64);
  ASSERT_EQ(stamp(nullptr, p, 1, 5), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 5u);
}

// From here on: the judge.
TEST_F(Sticky, AccessesOfCancelledWorkAreNotHeldAgainstTheNextOwner) {
  const CUdeviceptr p = pool_block();
  cupoolSimOwner(pointer(p), 4096, 1);
  ASSERT_EQ(stamp(stream(), p, 16, 1), CUDA_SUCCESS);
  const CUstream gone = stream();
  ASSERT_EQ(stamp(gone, p, 16, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamDestroy(gone), CUDA_SUCCESS);
  trap();
  cupoolSimOwner(pointer(p), 4096, 2);
  other_context();
  EXPECT_EQ(stamp(nullptr, p, 16, 2), CUDA_SUCCESS);
  EXPECT_EQ(complaints(), 0u) << cupoolSimLastComplaint();
}

TEST_F(Sticky, NorAreThoseOfWorkThatRanUnseen) {
  const CUdeviceptr p = pool_block();
  ASSERT_EQ(cupoolSimSet("mode", "early"), 0);
  cupoolSimOwner(pointer(p), 4096, 1);
  ASSERT_EQ(stamp(stream(), p, 16, 1), CUDA_SUCCESS);
  ASSERT_EQ(launch("trap", s, nullptr), CUDA_ERROR_LAUNCH_FAILED);
  cupoolSimOwner(pointer(p), 4096, 2);
  other_context();
  EXPECT_EQ(stamp(nullptr, p, 16, 2), CUDA_SUCCESS);
  EXPECT_EQ(complaints(), 0u) << cupoolSimLastComplaint();
}

// The dropped work was behind work of another context: dropping it says nothing of that.
TEST_F(Sticky, WorkOfOtherContextsThatWasWaitedForIsStillPending) {
  const CUdeviceptr p = pool_block();
  const CUcontext other = other_context();
  const CUstream a = stream();
  const CUevent e = event();
  cupoolSimOwner(pointer(p), 4096, 1);
  ASSERT_EQ(stamp(a, p, 16, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, a), CUDA_SUCCESS);

  ASSERT_EQ(cuCtxPushCurrent(context), CUDA_SUCCESS);
  const CUstream dropped = stream();
  const CUevent after = event();
  ASSERT_EQ(cuStreamWaitEvent(dropped, e, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(after, dropped), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  const CUstream behind = stream();
  ASSERT_EQ(cuStreamWaitEvent(behind, after, 0), CUDA_SUCCESS);

  ASSERT_EQ(cuCtxPushCurrent(context), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleLoadData(&module, ""), CUDA_SUCCESS);
  trap();
  EXPECT_EQ(cuStreamSynchronize(dropped), CUDA_ERROR_LAUNCH_FAILED);
  ASSERT_EQ(cuCtxSetCurrent(other), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleLoadData(&module, ""), CUDA_SUCCESS);

  cupoolSimOwner(pointer(p), 4096, 2);
  ASSERT_EQ(stamp(stream(), p, 16, 2), CUDA_SUCCESS);
  EXPECT_EQ(complaints(), 1u) << "the first owner's kernel has not run";
  EXPECT_EQ(word(p), 0u);
  ASSERT_EQ(cuStreamSynchronize(behind), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 1u) << "what waits behind the dropped work waits for it as well";
}

}  // namespace cupool::sim::test
