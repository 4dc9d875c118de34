// SPDX-License-Identifier: Apache-2.0
// Programmatic dependent launches: a kernel that may begin before the kernel before it in its
// stream has ended. What separates the two, and what comes behind both, was measured
// (docs/measurements/2026-11-27-dependent-launches).
#include "fixture.h"

namespace cupool::sim::test {

class DependentLaunch : public JudgedSim {
 protected:
  void SetUp() override {
    JudgedSim::SetUp();
    own = stream();
    p = alloc(4);
    q = alloc(4);
  }
  CUresult stamp_early(CUstream to, CUdeviceptr at, uint32_t value, bool permitted = true) {
    CUlaunchAttribute attribute = {};
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = permitted ? 1 : 0;
    CUlaunchConfig shape = {};
    shape.gridDimX = shape.gridDimY = shape.gridDimZ = 1;
    shape.blockDimX = shape.blockDimY = shape.blockDimZ = 1;
    shape.hStream = to;
    shape.attrs = &attribute;
    shape.numAttrs = 1;
    CUfunction function = nullptr;
    const CUresult found = cuModuleGetFunction(&function, module, "stamp_u32");
    if (found != CUDA_SUCCESS) return found;
    uint64_t words = 1;
    void* arguments[] = {&at, &words, &value};
    return cuLaunchKernelEx(&shape, function, arguments, nullptr);
  }
  /// Whether a dependent launch overlaps a kernel when `between` was called after that.
  template <typename Between>
  bool overlaps(CUstream to, const Between& between) {
    EXPECT_EQ(stamp(to, p, 1, 1), CUDA_SUCCESS);
    between();
    EXPECT_EQ(stamp_early(to, p, 2), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    return word(p) == 1;
  }

  CUstream own = nullptr;
  CUdeviceptr p = 0;
  CUdeviceptr q = 0;
};

TEST_F(DependentLaunch, BeginsBeforeTheKernelBeforeItHasEnded) {
  EXPECT_TRUE(overlaps(own, [] {}));
  EXPECT_TRUE(overlaps(CU_STREAM_LEGACY, [] {}));
}

TEST_F(DependentLaunch, IsAnOrdinaryOneWhereThatIsNotPermitted) {
  ASSERT_EQ(stamp(own, p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(stamp_early(own, p, 2, false), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(own), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 2u);
}

TEST_F(DependentLaunch, OverlapsAcrossEventsAndAllocations) {
  const CUevent e = event();
  EXPECT_TRUE(overlaps(own, [&] { cuEventRecord(e, own); }));
  EXPECT_TRUE(overlaps(own, [&] { cuCtxRecordEvent(context, e); }));
  EXPECT_TRUE(overlaps(own, [&] {
    cuEventRecord(e, own);
    cuStreamWaitEvent(own, e, 0);
  }));
  EXPECT_TRUE(overlaps(own, [&] {
    CUdeviceptr block = 0;
    cuMemAllocAsync(&block, 4, own);
    cuMemFreeAsync(block, own);
  }));
}

TEST_F(DependentLaunch, DoesNotOverlapOtherWork) {
  EXPECT_FALSE(overlaps(own, [&] { cuMemsetD32Async(q, 1, 1, own); }));
}

TEST_F(DependentLaunch, ComesBehindWhatItsStreamHasWaitedFor) {
  const CUstream other = stream();
  const CUevent e = event();
  ASSERT_EQ(stamp(own, p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(stamp(other, q, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, other), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(own, e, 0), CUDA_SUCCESS);
  ASSERT_EQ(stamp_early(own, q, 2), CUDA_SUCCESS);
  EXPECT_EQ(word(q), 2u) << "has begun";
  EXPECT_EQ(word(p), 0u) << "and the kernel before it has not";
}

TEST_F(DependentLaunch, OfAnEventOfTheContextItComesBehindTheOtherStreamsWork) {
  const CUstream other = stream();
  const CUevent e = event();
  ASSERT_EQ(stamp(own, p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(stamp(other, q, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxRecordEvent(context, e), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(own, e, 0), CUDA_SUCCESS);
  ASSERT_EQ(stamp_early(own, q, 2), CUDA_SUCCESS);
  EXPECT_EQ(word(q), 2u);
  EXPECT_EQ(word(p), 0u);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 1u);
  EXPECT_EQ(word(q), 2u);
}

TEST_F(DependentLaunch, AWaitForItIsOneForWhatItOverlaps) {
  const CUevent e = event();
  ASSERT_EQ(stamp(own, p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(stamp_early(own, q, 2), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, own), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 0u);
  ASSERT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 1u);
}

TEST_F(DependentLaunch, ChainsOverlapTheFirstKernel) {
  ASSERT_EQ(stamp(own, p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(stamp_early(own, q, 2), CUDA_SUCCESS);
  ASSERT_EQ(stamp_early(own, q, 3), CUDA_SUCCESS);
  EXPECT_EQ(word(q), 3u);
  EXPECT_EQ(word(p), 0u);
}

// The stream's last kernel may still use the block that comes back in its order.
TEST_F(DependentLaunch, TheJudgeSeesABlockThatIsReusedTooEarly) {
  CUdeviceptr block = 0;
  ASSERT_EQ(cuMemAllocAsync(&block, 4, own), CUDA_SUCCESS);
  cupoolSimOwner(pointer(block), 4, 1);
  ASSERT_EQ(stamp(own, block, 1, 1), CUDA_SUCCESS);
  cupoolSimOwner(pointer(block), 4, 2);
  ASSERT_EQ(stamp(own, block, 1, 2), CUDA_SUCCESS);
  EXPECT_EQ(complaints(), 0u);
  cupoolSimOwner(pointer(block), 4, 3);
  ASSERT_EQ(stamp_early(own, block, 3), CUDA_SUCCESS);
  EXPECT_EQ(complaints(), 1u);
}

}  // namespace cupool::sim::test
