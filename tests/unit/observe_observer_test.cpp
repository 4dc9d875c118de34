// SPDX-License-Identifier: Apache-2.0
// The observer with a heap that gives nothing: the program's calls are answered as by the driver,
// and what cannot be recorded is missing from the report alone.
#include "observe/observer.h"

#include <gtest/gtest.h>

#include "empty_heap.h"
#include "engine_fake_driver.h"

namespace cupool::observe {
namespace {

class ObserverTest : public testing::Test {
 protected:
  static constexpr CUdeviceptr kAddress = 0x7000000000;
  static constexpr std::uint64_t kBytes = 4096;

  ObserverTest() {
    driver_.cuEventDestroy_v2 = [](CUevent) { return CUDA_SUCCESS; };
    driver_.cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus* status) {
      *status = CU_STREAM_CAPTURE_STATUS_NONE;
      return CUDA_SUCCESS;
    };
  }
  CUresult allocate() {
    const CUdeviceptr address = kAddress;
    return observer_.allocate([] { return kBytes; }, &address, [] { return CUDA_SUCCESS; });
  }
  CUresult free() {
    return observer_.free(kAddress, [] { return CUDA_SUCCESS; });
  }
  std::int64_t live_bytes() {
    return stats::device(0).value(stats::Gauge::passthrough_bytes).current;
  }

  cuda::Driver driver_ = test::fake_driver();
  config::Settings settings_;
  Observer observer_{driver_, settings_};
};

TEST_F(ObserverTest, MemoryWithoutARecordIsNotCounted) {
  const std::int64_t before = live_bytes();
  {
    const test::EmptyHeap none;
    EXPECT_EQ(allocate(), CUDA_SUCCESS);
    EXPECT_FALSE(observer_.holds(kAddress));
    EXPECT_EQ(free(), CUDA_SUCCESS);
  }
  EXPECT_EQ(live_bytes(), before);
  EXPECT_EQ(allocate(), CUDA_SUCCESS);
  EXPECT_TRUE(observer_.holds(kAddress));
  EXPECT_EQ(live_bytes(), before + std::int64_t{kBytes});
  EXPECT_EQ(free(), CUDA_SUCCESS);
  EXPECT_EQ(live_bytes(), before);
}

// An event of the context would invalidate the capture.
TEST_F(ObserverTest, TheGpuIsNotAskedBesideACaptureThatCannotBeListed) {  // I3
  const auto stream = reinterpret_cast<CUstream>(0x100);
  EXPECT_EQ(allocate(), CUDA_SUCCESS);
  {
    const test::EmptyHeap none;
    EXPECT_EQ(observer_.begin_capture(stream, [] { return CUDA_SUCCESS; }), CUDA_SUCCESS);
  }
  const std::uint64_t recorded = test::gpu.recorded.load();
  EXPECT_EQ(free(), CUDA_SUCCESS);
  EXPECT_EQ(test::gpu.recorded.load(), recorded);
}

}  // namespace
}  // namespace cupool::observe
