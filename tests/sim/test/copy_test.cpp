// SPDX-License-Identifier: Apache-2.0
// Copies and fills: when the host waits, and whose buffers may be touched when.
// Rules: cuda.h, "API synchronization behavior".
#include "fixture.h"

#include <cstring>
#include <vector>

namespace cupool::sim::test {

class Copies : public Sim {
 protected:
  void SetUp() override {
    Sim::SetUp();
    s = stream();
    device_memory = alloc(4096);
    void* host = nullptr;
    ASSERT_EQ(cuMemHostAlloc(&host, 4096, 0), CUDA_SUCCESS);
    pinned = static_cast<uint32_t*>(host);
    std::memset(pinned, 0, 4096);
  }
  CUstream s = nullptr;
  CUdeviceptr device_memory = 0;
  uint32_t* pinned = nullptr;
};

TEST_F(Copies, PageableSourcesAreStaged) {
  uint32_t value = 1;
  ASSERT_EQ(cuMemcpyHtoDAsync(device_memory, &value, 4, s), CUDA_SUCCESS);
  value = 2;
  EXPECT_EQ(word(device_memory), 0u);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(word(device_memory), 1u);
}

TEST_F(Copies, PinnedSourcesAreReadWhenTheCopyRuns) {
  pinned[0] = 1;
  ASSERT_EQ(cuMemcpyHtoDAsync(device_memory, pinned, 4, s), CUDA_SUCCESS);
  pinned[0] = 2;
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(word(device_memory), 2u);
}

TEST_F(Copies, PageableTargetsAreWaitedFor) {
  uint32_t value = 0;
  ASSERT_EQ(stamp(s, device_memory, 1, 7), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync(&value, device_memory, 4, s), CUDA_SUCCESS);
  EXPECT_EQ(value, 7u);
}

TEST_F(Copies, PinnedTargetsAreNot) {
  ASSERT_EQ(stamp(s, device_memory, 1, 7), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync(pinned, device_memory, 4, s), CUDA_SUCCESS);
  EXPECT_EQ(pinned[0], 0u);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(pinned[0], 7u);
}

TEST_F(Copies, SynchronousCopiesToTheHostWait) {
  uint32_t value = 0;
  ASSERT_EQ(stamp(nullptr, device_memory, 1, 7), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoH(&value, device_memory, 4), CUDA_SUCCESS);
  EXPECT_EQ(value, 7u);
}

TEST_F(Copies, SynchronousCopiesDoNotWaitForNonBlockingStreams) {
  uint32_t value = 9;
  ASSERT_EQ(stamp(s, device_memory, 1, 7), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoH(&value, device_memory, 4), CUDA_SUCCESS);
  EXPECT_EQ(value, 0u);
}

TEST_F(Copies, CopiesBetweenDeviceMemoryAndFillsDoNotWait) {
  ASSERT_EQ(cuMemcpyDtoD(device_memory, device_memory + 64, 4), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD32(device_memory, 5, 1), CUDA_SUCCESS);
  EXPECT_EQ(cupoolSimPending(), 2u);
  EXPECT_EQ(word(device_memory), 0u);
  ASSERT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(word(device_memory), 5u);
}

TEST_F(Copies, HostToHostWaits) {
  pinned[1] = 3;
  ASSERT_EQ(cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(pinned),
                          reinterpret_cast<CUdeviceptr>(pinned + 1), 4, s),
            CUDA_SUCCESS);
  EXPECT_EQ(pinned[0], 3u);
}

TEST_F(Copies, TwoAndThreeDimensions) {
  std::vector<unsigned char> image(30 * 7);
  for (size_t i = 0; i < image.size(); ++i) image[i] = static_cast<unsigned char>(i);
  CUDA_MEMCPY2D c{};
  c.srcMemoryType = CU_MEMORYTYPE_HOST;
  c.srcHost = image.data();
  c.srcPitch = 30;
  c.srcXInBytes = 5;
  c.srcY = 2;
  c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  c.dstDevice = device_memory;
  c.dstPitch = 64;
  c.WidthInBytes = 10;
  c.Height = 3;
  ASSERT_EQ(cuMemcpy2D(&c), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  const auto* out = reinterpret_cast<const unsigned char*>(device_memory);
  EXPECT_EQ(out[0], image[2 * 30 + 5]);
  EXPECT_EQ(out[2 * 64 + 9], image[4 * 30 + 14]);
  EXPECT_EQ(out[10], 0u) << "nothing beside the box";

  CUDA_MEMCPY3D d{};
  d.srcMemoryType = CU_MEMORYTYPE_HOST;
  d.srcHost = image.data();
  d.srcPitch = 10;
  d.srcHeight = 7;
  d.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  d.dstDevice = device_memory + 1024;
  d.dstPitch = 16;
  d.dstHeight = 8;
  d.WidthInBytes = 10;
  d.Height = 7;
  d.Depth = 3;
  ASSERT_EQ(cuMemcpy3D(&d), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(out[1024 + 2 * 8 * 16 + 6 * 16 + 9], image[209]);
  c.WidthInBytes = 31;
  EXPECT_EQ(cuMemcpy2D(&c), CUDA_ERROR_INVALID_VALUE) << "wider than the pitch";
}

TEST_F(Copies, FillsOfEveryWidth) {
  ASSERT_EQ(cuMemsetD8(device_memory, 0x11, 4), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD16(device_memory + 4, 0x2222, 2), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD32(device_memory + 8, 0x33333333, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD2D32(device_memory + 64, 64, 0x44444444, 1, 2), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(word(device_memory, 0), 0x11111111u);
  EXPECT_EQ(word(device_memory, 1), 0x22222222u);
  EXPECT_EQ(word(device_memory, 2), 0x33333333u);
  EXPECT_EQ(word(device_memory, 3), 0u);
  EXPECT_EQ(word(device_memory, 16), 0x44444444u);
  EXPECT_EQ(word(device_memory, 32), 0x44444444u);
  EXPECT_EQ(word(device_memory, 17), 0u);
  EXPECT_EQ(cuMemsetD32(device_memory + 1, 0, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Copies, ADeviceAddressThatIsNobodysIsRefused) {
  uint32_t value = 0;
  EXPECT_EQ(cuMemcpyHtoD(device_memory + 4096, &value, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoD(device_memory + 4092, &value, 8), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Copies, TheKernelsOfTheTests) {
  const CUdeviceptr sum = alloc(8);
  ASSERT_EQ(stamp(s, device_memory, 100, 42), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD32Async(device_memory + 40, 0, 3, s), CUDA_SUCCESS);
  ASSERT_EQ(check(s, device_memory, 100, 42, sum), CUDA_SUCCESS);
  ASSERT_EQ(check(s, device_memory, 10, 42, sum), CUDA_SUCCESS);
  CUdeviceptr to = device_memory + 2048;
  uint64_t words = 100;
  void* arguments[] = {&to, &device_memory, &words};
  ASSERT_EQ(launch("copy_u32", s, arguments), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(word(sum), 3u);
  EXPECT_EQ(word(to, 99), 42u);
  CUfunction none = nullptr;
  EXPECT_EQ(cuModuleGetFunction(&none, module, "no_such_kernel"), CUDA_ERROR_NOT_FOUND);
}

}  // namespace cupool::sim::test
