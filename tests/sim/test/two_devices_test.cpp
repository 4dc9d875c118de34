// SPDX-License-Identifier: Apache-2.0
// Several devices and access between them.
// Rules: measured with two GPUs.
#include "fixture.h"

namespace cupool::sim::test {

const Variables variables{{"CUPOOL_SIM_DEVICES", "2"}, {"CUPOOL_SIM_MEMORY", "256M"}};

class TwoDevices : public Sim {
 protected:
  void SetUp() override {
    Sim::SetUp();
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
  }
  void TearDown() override {
    cuDevicePrimaryCtxReset(1);
    cuDevicePrimaryCtxRelease(1);
    Sim::TearDown();
  }
  /// Memory of device 1.
  CUdeviceptr theirs() {
    cuCtxSetCurrent(second);
    const CUdeviceptr p = alloc(4096);
    cuCtxSetCurrent(context);
    return p;
  }
  CUmemoryPool pool_of(int ordinal) {
    CUmemoryPool pool = nullptr;
    EXPECT_EQ(cuDeviceGetDefaultMemPool(&pool, ordinal), CUDA_SUCCESS);
    return pool;
  }
  CUcontext second = nullptr;
};

TEST_F(TwoDevices, EachHasItsOwnMemory) {
  int count = 0;
  size_t total = 0;
  ASSERT_EQ(cuDeviceGetCount(&count), CUDA_SUCCESS);
  EXPECT_EQ(count, 2);
  ASSERT_EQ(cuDeviceTotalMem(&total, 1), CUDA_SUCCESS);
  EXPECT_EQ(total, 256u << 20);
  const size_t before = free_bytes();
  const CUdeviceptr p = theirs();
  EXPECT_EQ(free_bytes(), before);
  int ordinal = -1;
  cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p);
  EXPECT_EQ(ordinal, 1);
  CUdevice none = 0;
  EXPECT_EQ(cuDeviceGet(&none, 2), CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(TwoDevices, CopiesBetweenLegacyMemoryNeedNoAccess) {
  const CUdeviceptr p = theirs();
  const CUdeviceptr q = alloc(4096);
  ASSERT_EQ(cuMemsetD32(q, 5, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyPeer(p, second, q, context, 4), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 5u);
}

// "cudaMemcpyPeer into pool memory whose pool gives the peer no access reports success and writes
// nothing. With cudaMemPoolSetAccess it works."
TEST_F(TwoDevices, CopiesIntoPoolMemoryWithoutAccessWriteNothing) {
  CUdeviceptr p = 0;
  const CUdeviceptr q = alloc(4096);
  ASSERT_EQ(cuCtxSetCurrent(second), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocAsync(&p, 4096, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD32(p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD32(q, 5, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyPeer(p, second, q, context, 4), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 1u);

  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  ASSERT_EQ(cuMemPoolSetAccess(pool_of(1), &access, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyPeer(p, second, q, context, 4), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 5u);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  ASSERT_EQ(cuMemPoolSetAccess(pool_of(1), &access, 1), CUDA_SUCCESS);
  access.location.id = 1;
  EXPECT_EQ(cuMemPoolSetAccess(pool_of(1), &access, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(p), CUDA_SUCCESS);
}

TEST_F(TwoDevices, KernelsNeedPeerAccess) {
  const CUdeviceptr p = theirs();
  ASSERT_EQ(cuCtxEnablePeerAccess(second, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxEnablePeerAccess(second, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  ASSERT_EQ(stamp(nullptr, p, 1, 3), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 3u);
  ASSERT_EQ(cuCtxDisablePeerAccess(second), CUDA_SUCCESS);
  ASSERT_EQ(stamp(nullptr, p, 1, 4), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(TwoDevices, KernelsNeedThePoolsAccess) {
  CUdeviceptr p = 0;
  ASSERT_EQ(cuCtxSetCurrent(second), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocAsync(&p, 4096, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxEnablePeerAccess(second, 0), CUDA_SUCCESS);
  ASSERT_EQ(stamp(nullptr, p, 1, 3), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS) << "peer access is not enough";
}

// "A kernel of device 1 writing legacy memory of device 0 while that is freed: legacy cudaFree does
// not wait for it."
TEST_F(TwoDevices, FreeDoesNotWaitForTheOtherDevice) {
  const CUdeviceptr p = theirs();
  const CUdeviceptr mine = alloc(4);
  ASSERT_EQ(cuCtxSetCurrent(second), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD32(p, 9, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFree(mine), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 0u);
}

// What a stream has pending reaches the memory that it frees, though it is another device's.
TEST_F(TwoDevices, MemoryIsThereUntilItsFreeInTheOthersStream) {
  const CUdeviceptr p = theirs();
  const CUdeviceptr mine = alloc(4);
  ASSERT_EQ(cuCtxEnablePeerAccess(second, 0), CUDA_SUCCESS);
  ASSERT_EQ(stamp(nullptr, p, 1, 3), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoDAsync(mine, p, 4, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(p, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(word(mine), 3u);
}

// "An event of one device cannot be recorded on a stream of another."
TEST_F(TwoDevices, EventsBelongToTheirDevice) {
  const CUevent e = event();
  ASSERT_EQ(cuCtxSetCurrent(second), CUDA_SUCCESS);
  const CUstream s = stream();
  EXPECT_EQ(cuEventRecord(e, s), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamWaitEvent(s, e, 0), CUDA_SUCCESS) << "but it can be waited for";
}

}  // namespace cupool::sim::test
