// SPDX-License-Identifier: Apache-2.0
// The judge: it must catch the obvious mapping and every single kind of fault, and must be silent
// about programs that order their work. Rules: contract 1 and 2, I1 and I2.
#include "fixture.h"

#include <cstring>
#include <map>

namespace cupool::sim::test {

class Judged : public JudgedSim {
 protected:
  void SetUp() override {
    JudgedSim::SetUp();
    a = stream();
    b = stream();
    ::testing::internal::CaptureStderr();
  }
  void TearDown() override {
    ::testing::internal::GetCapturedStderr();
    Sim::TearDown();
  }

  CUstream a = nullptr;
  CUstream b = nullptr;
};

TEST_F(Judged, AnUnorderedForeignAccessIsFound) {
  const CUdeviceptr p = alloc(4096);
  cupoolSimOwner(pointer(p), 4096, 1);
  ASSERT_EQ(stamp(a, p, 16, 1), CUDA_SUCCESS);
  cupoolSimOwner(pointer(p), 4096, 2);
  ASSERT_EQ(stamp(b, p, 16, 2), CUDA_SUCCESS);
  EXPECT_EQ(complaints(), 1u);
  EXPECT_NE(std::strstr(cupoolSimLastComplaint(), "foreign access"), nullptr);
}

TEST_F(Judged, EveryKindOfOrderIsAccepted) {
  const CUdeviceptr p = alloc(4096);
  unsigned long long owner = 1;
  auto hand_over = [&](auto order, CUstream next) {
    cupoolSimOwner(pointer(p), 4096, owner++);
    ASSERT_EQ(stamp(a, p, 16, 1), CUDA_SUCCESS);
    cupoolSimOwner(pointer(p), 4096, owner++);
    order();
    ASSERT_EQ(stamp(next, p, 16, 2), CUDA_SUCCESS);
    ASSERT_EQ(complaints(), 0u) << owner << " " << cupoolSimLastComplaint();
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  };
  hand_over([] {}, a);
  hand_over([&] { cuStreamSynchronize(a); }, b);
  hand_over(
      [&] {
        const CUevent e = event();
        cuEventRecord(e, a);
        while (cuEventQuery(e) != CUDA_SUCCESS) {
        }
      },
      b);
  hand_over(
      [&] {
        const CUevent e = event();
        cuEventRecord(e, a);
        cuStreamWaitEvent(b, e, 0);
      },
      b);
  hand_over(
      [&] {
        const CUevent e = event();
        cuCtxRecordEvent(context, e);
        cuEventSynchronize(e);
      },
      b);
  hand_over(
      [&] {
        const CUevent e = event();
        cuEventRecord(e, a);
        cuCtxWaitEvent(context, e);
      },
      stream());
  hand_over([&] { cuMemFree(alloc(4)); }, b);
}

TEST_F(Judged, InEveryMode) {
  for (const char* mode : {"late", "early", "timed"}) {
    ASSERT_EQ(cupoolSimSet("mode", mode), 0);
    const unsigned long long now = complaints();
    const CUdeviceptr p = alloc(4096);
    cupoolSimOwner(pointer(p), 4096, 1);
    ASSERT_EQ(stamp(a, p, 16, 1), CUDA_SUCCESS);
    cupoolSimOwner(pointer(p), 4096, 2);
    ASSERT_EQ(stamp(b, p, 16, 2), CUDA_SUCCESS);
    EXPECT_EQ(complaints(), now + 1) << mode << ": it need not really collide";
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    cupoolSimOwner(pointer(p), 4096, 0);
  }
}

TEST_F(Judged, ReadersDoNotDisturbEachOther) {
  const CUdeviceptr p = alloc(4096);
  const CUdeviceptr q = alloc(4096);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  cupoolSimOwner(pointer(p), 4096, 1);
  ASSERT_EQ(cuMemcpyDtoDAsync(q, p, 64, a), CUDA_SUCCESS);
  cupoolSimOwner(pointer(p), 4096, 2);
  ASSERT_EQ(cuMemcpyDtoDAsync(q + 1024, p, 64, b), CUDA_SUCCESS);
  EXPECT_EQ(complaints(), 0u);
  ASSERT_EQ(stamp(b, p, 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(complaints(), 1u) << "but a write after the old owner's pending read is a fault";
}

TEST_F(Judged, NeighboursDoNotDisturbEachOther) {
  const CUdeviceptr p = alloc(4096);
  cupoolSimOwner(pointer(p), 64, 1);
  cupoolSimOwner(pointer(p + 64), 64, 2);
  ASSERT_EQ(stamp(a, p, 16, 1), CUDA_SUCCESS);
  ASSERT_EQ(stamp(b, p + 64, 16, 2), CUDA_SUCCESS);
  EXPECT_EQ(complaints(), 0u);
}

TEST_F(Judged, APartOfABlockIsEnough) {
  const CUdeviceptr p = alloc(4096);
  cupoolSimOwner(pointer(p), 4096, 1);
  ASSERT_EQ(stamp(a, p, 1024, 1), CUDA_SUCCESS);
  cupoolSimOwner(pointer(p), 4096, 2);
  ASSERT_EQ(stamp(b, p + 2048, 1, 2), CUDA_SUCCESS);
  EXPECT_EQ(complaints(), 1u);
}

TEST_F(Judged, TheSameOwnerMayRaceWithItself) {
  const CUdeviceptr p = alloc(4096);
  cupoolSimOwner(pointer(p), 4096, 1);
  ASSERT_EQ(stamp(a, p, 16, 1), CUDA_SUCCESS);
  ASSERT_EQ(stamp(b, p, 16, 2), CUDA_SUCCESS);
  EXPECT_EQ(complaints(), 0u);
}

// Contract I2: an allocation is an operation of its stream.
TEST_F(Judged, PoolMemoryUsedBeforeItsAllocationCompletedIsFound) {
  CUdeviceptr p = 0;
  ASSERT_EQ(cuMemAllocAsync(&p, 4096, a), CUDA_SUCCESS);
  ASSERT_EQ(stamp(b, p, 16, 2), CUDA_SUCCESS);
  EXPECT_EQ(complaints(), 1u);
  EXPECT_NE(std::strstr(cupoolSimLastComplaint(), "too early"), nullptr);
}

TEST_F(Judged, PoolMemoryUsedInOrderIsFine) {
  CUdeviceptr p = 0;
  ASSERT_EQ(cuMemAllocAsync(&p, 4096, a), CUDA_SUCCESS);
  ASSERT_EQ(stamp(a, p, 16, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
  ASSERT_EQ(stamp(b, p, 16, 2), CUDA_SUCCESS);
  EXPECT_EQ(complaints(), 0u);
}

TEST_F(Judged, GivingMemoryToThePoolWhileItIsUsedIsFound) {
  CUdeviceptr p = 0;
  ASSERT_EQ(cuMemAllocAsync(&p, 4096, a), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
  ASSERT_EQ(stamp(b, p, 16, 2), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(p, a), CUDA_SUCCESS);
  EXPECT_EQ(complaints(), 1u);
  EXPECT_NE(std::strstr(cupoolSimLastComplaint(), "freed to the pool"), nullptr);
}

TEST_F(Judged, SoIsCuMemFreeOfAPoolPointer) {
  CUdeviceptr p = 0;
  ASSERT_EQ(cuMemAllocAsync(&p, 4096, a), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
  ASSERT_EQ(stamp(a, p, 16, 2), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFree(p), CUDA_SUCCESS);
  EXPECT_EQ(complaints(), 1u);
}

// Contract 2, the host's side of free: legacy free would have waited for the copy.
TEST_F(Judged, HostAccessToABufferInUseIsFound) {
  void* pinned = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&pinned, 4096, 0), CUDA_SUCCESS);
  const CUdeviceptr p = alloc(4096);
  ASSERT_EQ(cuMemcpyHtoDAsync(p, pinned, 4096, a), CUDA_SUCCESS);
  cupoolSimHostAccess(pinned, 4096, 0);
  EXPECT_EQ(complaints(), 0u) << "both only read";
  cupoolSimHostAccess(pinned, 4096, 1);
  EXPECT_EQ(complaints(), 1u);
  ASSERT_EQ(cuMemFree(p), CUDA_SUCCESS);
  cupoolSimHostAccess(pinned, 4096, 1);
  EXPECT_EQ(complaints(), 1u) << "the free waited";
}

TEST_F(Judged, GraphReplaysAreJudged) {
  const CUdeviceptr p = alloc(4096);
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(stamp(a, p, 16, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamEndCapture(a, &graph), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  cupoolSimOwner(pointer(p), 4096, 1);
  ASSERT_EQ(stamp(b, p, 16, 1), CUDA_SUCCESS);
  cupoolSimOwner(pointer(p), 4096, 2);
  ASSERT_EQ(cuGraphLaunch(exec, a), CUDA_SUCCESS);
  EXPECT_EQ(complaints(), 1u);
}

TEST_F(Judged, AFailedContextLeavesNothingBehind) {
  const CUdeviceptr p = alloc(4096);
  cupoolSimOwner(pointer(p), 4096, 1);
  ASSERT_EQ(launch("trap", b, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(stamp(a, p, 16, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(b), CUDA_ERROR_LAUNCH_FAILED);
  ASSERT_EQ(cuStreamDestroy(a), CUDA_ERROR_LAUNCH_FAILED);
  ASSERT_EQ(cuDevicePrimaryCtxReset(device), CUDA_SUCCESS);
  CUcontext again = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&again, device), CUDA_SUCCESS);
  alloc(2 << 20);  // where the module was
  ASSERT_EQ(alloc(4096), p);
  cupoolSimOwner(pointer(p), 4096, 2);
  ASSERT_EQ(cuMemsetD8Async(p, 0, 64, stream()), CUDA_SUCCESS);
  EXPECT_EQ(complaints(), 0u);
  cuDevicePrimaryCtxRelease(device);
}

// A deliberately wrong engine: cudaFree becomes "put it on a list", cudaMalloc takes from it.
TEST_F(Judged, TheObviousMappingIsCaught) {
  std::map<int, CUdeviceptr> cache;
  unsigned long long owner = 0;
  auto wrong_malloc = [&] {
    CUdeviceptr p = cache.empty() ? alloc(4096) : cache.begin()->second;
    cache.clear();
    cupoolSimOwner(pointer(p), 4096, ++owner);
    return p;
  };
  auto wrong_free = [&](CUdeviceptr p) { cache[0] = p; };
  const CUdeviceptr first = wrong_malloc();
  ASSERT_EQ(stamp(a, first, 16, 1), CUDA_SUCCESS);
  wrong_free(first);
  const CUdeviceptr second = wrong_malloc();
  ASSERT_EQ(second, first);
  ASSERT_EQ(stamp(b, second, 16, 2), CUDA_SUCCESS);
  EXPECT_EQ(complaints(), 1u);
  // And it is no false alarm: the old kernel runs after the new one and overwrites its word.
  ASSERT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
  EXPECT_EQ(word(second), 1u);
}

// A forked child of an initialised process has no driver, so the death happens in a new process.
class JudgedDeathTest : public Sim {
 protected:
  void SetUp() override {
    ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
    Sim::SetUp();
  }
};

TEST_F(JudgedDeathTest, TheFirstComplaintStopsATest) {
  const CUstream a = stream();
  const CUstream b = stream();
  const CUdeviceptr p = alloc(4096);
  ASSERT_EQ(cupoolSimSet("judge", "1"), 0);
  EXPECT_DEATH(
      {
        stamp(a, p, 16, 1);
        cupoolSimOwner(reinterpret_cast<void*>(p), 4096, 2);
        stamp(b, p, 16, 2);
      },
      "foreign access");
}

}  // namespace cupool::sim::test
