// SPDX-License-Identifier: Apache-2.0
// Legacy memory: who waits, what the errors are, how it is aligned and counted.
// Rules: docs/measurements/2026-11-22-h200-driver-facts.txt (who waits); the rest measured with an
// H200.
#include "fixture.h"

#include <cstring>

namespace cupool::sim::test {

using LegacyMemory = Sim;

// "Legacy cudaFree blocks the host until all work of the context is done, whatever the size and
// stream, non-blocking streams included."
TEST_F(LegacyMemory, FreeWaitsForEverything) {
  const CUdeviceptr p = alloc(8);
  const CUdeviceptr unrelated = alloc(4);
  const CUstream s = stream();
  ASSERT_EQ(stamp(s, p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(stamp(nullptr, p + 4, 1, 2), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFree(unrelated), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 1u);
  EXPECT_EQ(word(p + 4), 2u);
}

// "a legacy cudaFree after [cudaStreamDestroy] still waits for its work."
TEST_F(LegacyMemory, FreeWaitsForDestroyedStreams) {
  const CUdeviceptr p = alloc(4);
  const CUstream s = stream();
  ASSERT_EQ(stamp(s, p, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamDestroy(s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFree(alloc(4)), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 1u);
}

TEST_F(LegacyMemory, FreeOfNothingOrNonsenseDoesNotWait) {
  const CUdeviceptr p = alloc(4);
  ASSERT_EQ(stamp(stream(), p, 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(p + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(word(p), 0u);
}

// "Legacy cudaMalloc does not wait."
TEST_F(LegacyMemory, AllocDoesNotWait) {
  const CUdeviceptr p = alloc(4);
  ASSERT_EQ(stamp(stream(), p, 1, 1), CUDA_SUCCESS);
  alloc(64 << 20);
  EXPECT_EQ(word(p), 0u);
}

// docs/measurements/2026-11-28-blocking-streams: a refusal may.
TEST_F(LegacyMemory, OnRequestARefusalWaitsForEverything) {
  const CUdeviceptr p = alloc(4);
  ASSERT_EQ(stamp(stream(), p, 1, 1), CUDA_SUCCESS);
  CUdeviceptr none = 0;
  ASSERT_EQ(cuMemAlloc(&none, size_t{1} << 40), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(word(p), 0u);
  ASSERT_EQ(cupoolSimSet("late_refusals", "1"), 0);
  EXPECT_EQ(cuMemAlloc(&none, size_t{1} << 40), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(word(p), 1u);
  cupoolSimSet("late_refusals", "0");
}

TEST_F(LegacyMemory, FreeInAnotherContextDoesNotWaitForThisOne) {
  const CUdeviceptr p = alloc(4);
  CUcontext other = nullptr;
  ASSERT_EQ(cuCtxCreate(&other, nullptr, 0, device), CUDA_SUCCESS);
  const CUdeviceptr theirs = alloc(4);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  ASSERT_EQ(stamp(stream(), p, 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(theirs), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 0u) << "what counts is the context of the block, not the current one";
  cuCtxDestroy(other);
}

// "cuMemAlloc(0): invalid value. cuMemFree(0): success. Interior and double free: invalid value.
// cudaMalloc(2^60): out of memory."
TEST_F(LegacyMemory, Errors) {
  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemAlloc(&p, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAlloc(nullptr, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAlloc(&p, size_t{1} << 60), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemFree(0), CUDA_SUCCESS);
  p = alloc(4096);
  EXPECT_EQ(cuMemFree(p + 512), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(reinterpret_cast<CUdeviceptr>(&p)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(p), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(p), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemGetInfo(nullptr, nullptr), CUDA_SUCCESS);
}

// "Both kinds of pointer are 512-byte aligned; legacy blocks from 2 MiB up are 2 MiB aligned."
TEST_F(LegacyMemory, Alignment) {
  for (size_t bytes : {1u, 511u, 513u, 100000u, 2097151u}) {
    EXPECT_EQ(alloc(bytes) % 512, 0u) << bytes;
  }
  for (size_t bytes : {2097152u, 2097153u, 50000000u}) {
    EXPECT_EQ(alloc(bytes) % 2097152, 0u) << bytes;
  }
}

TEST_F(LegacyMemory, SmallBlocksShareAChunkAndLargeOnesAreWholeChunks) {
  const size_t before = free_bytes();
  const CUdeviceptr a = alloc(1);
  EXPECT_EQ(before - free_bytes(), 2u << 20);
  const CUdeviceptr b = alloc(1 << 20);
  EXPECT_EQ(before - free_bytes(), 2u << 20);
  const CUdeviceptr c = alloc((2 << 20) + 1);
  EXPECT_EQ(before - free_bytes(), 6u << 20);
  cuMemFree(a);
  EXPECT_EQ(before - free_bytes(), 6u << 20);
  cuMemFree(b);
  cuMemFree(c);
  EXPECT_EQ(before, free_bytes());
}

TEST_F(LegacyMemory, TheDeviceRunsOut) {
  const size_t all = free_bytes();
  const CUdeviceptr p = alloc(all);
  CUdeviceptr q = 0;
  EXPECT_EQ(free_bytes(), 0u);
  EXPECT_EQ(cuMemAlloc(&q, 1), CUDA_ERROR_OUT_OF_MEMORY);
  CUmodule another = nullptr;
  EXPECT_EQ(cuModuleLoadData(&another, ""), CUDA_ERROR_OUT_OF_MEMORY) << "modules take memory too";
  ASSERT_EQ(cuMemFree(p), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&q, 1), CUDA_SUCCESS);
}

// "Fresh legacy memory reads zero; memory freed and allocated again in the process keeps its old
// content" (here as long as its chunk stays with the process).
TEST_F(LegacyMemory, Content) {
  const CUdeviceptr anchor = alloc(512);
  const CUdeviceptr p = alloc(512);
  EXPECT_EQ(word(p), 0u);
  ASSERT_EQ(cuMemsetD32(p, 7, 128), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFree(p), CUDA_SUCCESS);
  const CUdeviceptr again = alloc(512);
  ASSERT_EQ(again, p) << "first fit gives the address back";
  EXPECT_EQ(word(again), 7u);
  cuMemFree(again);
  cuMemFree(anchor);
  const CUdeviceptr fresh = alloc(512);
  EXPECT_EQ(word(fresh), 0u);
}

TEST_F(LegacyMemory, PitchIsAMultipleOf512) {
  CUdeviceptr p = 0;
  size_t pitch = 0;
  ASSERT_EQ(cuMemAllocPitch(&p, &pitch, 513, 3, 4), CUDA_SUCCESS);
  EXPECT_EQ(pitch, 1024u);
  EXPECT_EQ(cuMemAllocPitch(&p, &pitch, 0, 3, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocPitch(&p, &pitch, 100, 3, 3), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(LegacyMemory, RangesAndAttributes) {
  const CUdeviceptr p = alloc(1000);
  CUdeviceptr base = 0;
  size_t size = 0;
  ASSERT_EQ(cuMemGetAddressRange(&base, &size, p + 999), CUDA_SUCCESS);
  EXPECT_EQ(base, p);
  EXPECT_EQ(size, 1000u);
  EXPECT_EQ(cuMemGetAddressRange(&base, &size, p + 1000), CUDA_ERROR_NOT_FOUND);
  CUcontext owner = nullptr;
  ASSERT_EQ(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p), CUDA_SUCCESS);
  EXPECT_EQ(owner, context);
  unsigned one = 1;
  unsigned got = 0;
  ASSERT_EQ(cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p), CUDA_SUCCESS);
  cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p + 4);
  EXPECT_EQ(got, 1u);
  int local = 0;
  EXPECT_EQ(cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                  reinterpret_cast<CUdeviceptr>(&local)),
            CUDA_ERROR_INVALID_VALUE);
}

// Host memory: freeing and unregistering wait, allocating does not (measured with the same H200).
TEST_F(LegacyMemory, PinnedMemoryIsFreedAfterTheWork) {
  const CUdeviceptr p = alloc(4);
  void* pinned = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&pinned, 64, 0), CUDA_SUCCESS);
  ASSERT_EQ(stamp(stream(), p, 1, 1), CUDA_SUCCESS);
  void* more = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&more, 64, 0), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 0u);
  ASSERT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 1u);
  EXPECT_EQ(cuMemFreeHost(pinned), CUDA_ERROR_INVALID_VALUE);
  unsigned flags = 0;
  ASSERT_EQ(cuMemHostGetFlags(&flags, more), CUDA_SUCCESS);
  EXPECT_NE(flags & CU_MEMHOSTALLOC_DEVICEMAP, 0u) << "all of it is mapped";
}

TEST_F(LegacyMemory, RegisteredMemoryIsKnown) {
  alignas(4096) static char page[8192];
  CUdeviceptr p = 0;
  ASSERT_EQ(cuMemHostRegister(page, sizeof page, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostRegister(page, sizeof page, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  ASSERT_EQ(cuMemHostGetDevicePointer(&p, page, 0), CUDA_SUCCESS);
  EXPECT_EQ(p, reinterpret_cast<CUdeviceptr>(page));
  ASSERT_EQ(stamp(nullptr, p, 1, 5), CUDA_SUCCESS);
  ASSERT_EQ(cuMemHostUnregister(page), CUDA_SUCCESS);
  EXPECT_EQ(word(p), 5u);
  EXPECT_EQ(cuMemHostUnregister(page), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

TEST_F(LegacyMemory, OtherAllocatorsTakeFromTheSameDevice) {
  const size_t before = free_bytes();
  CUdeviceptr managed = 0;
  ASSERT_EQ(cuMemAllocManaged(&managed, 4 << 20, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(before - free_bytes(), 4u << 20);
  ASSERT_EQ(cuMemFree(managed), CUDA_SUCCESS);

  CUDA_ARRAY_DESCRIPTOR d{};
  d.Width = 1024;
  d.Height = 1024;
  d.Format = CU_AD_FORMAT_FLOAT;
  d.NumChannels = 1;
  CUarray array = nullptr;
  ASSERT_EQ(cuArrayCreate(&array, &d), CUDA_SUCCESS);
  EXPECT_EQ(before - free_bytes(), 4u << 20);
  ASSERT_EQ(cuArrayDestroy(array), CUDA_SUCCESS);

  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemCreate(&handle, 2 << 20, &prop, 0), CUDA_SUCCESS);
  EXPECT_EQ(before - free_bytes(), 2u << 20);
  ASSERT_EQ(cuMemAddressReserve(&at, 4 << 20, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(before - free_bytes(), 2u << 20) << "addresses cost nothing";
  ASSERT_EQ(cuMemMap(at, 2 << 20, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemSetAccess(at, 2 << 20, nullptr, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemSetAccess(at + (2 << 20), 2 << 20, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemsetD8(at, 3, 16), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(word(at), 0x03030303u);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(before - free_bytes(), 2u << 20) << "still mapped";
  EXPECT_EQ(cuMemUnmap(at, 2 << 20), CUDA_SUCCESS);
  EXPECT_EQ(before, free_bytes());
  EXPECT_EQ(cuMemAddressFree(at, 4 << 20), CUDA_SUCCESS);
}

}  // namespace cupool::sim::test
