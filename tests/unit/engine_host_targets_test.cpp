// SPDX-License-Identifier: Apache-2.0
// Which copies and stream memory operations touch host memory (contract 2).
#include "engine/reclaim/host_targets.h"

#include <gtest/gtest.h>

#include <vector>

namespace cupool::engine {
namespace {

constexpr CUdeviceptr kDeviceMemory = 0x1000;
constexpr CUdeviceptr kHostMemory = 0x2000;
unsigned host_targets_asked = 0;
CUresult host_targets_result = CUDA_SUCCESS;

cuda::Driver host_targets_driver() {
  host_targets_asked = 0;
  host_targets_result = CUDA_SUCCESS;
  cuda::Driver driver;
  driver.cuPointerGetAttribute = [](void* value, CUpointer_attribute, CUdeviceptr address) {
    ++host_targets_asked;
    *static_cast<unsigned*>(value) =
        address == kDeviceMemory ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    return host_targets_result;
  };
  return driver;
}

// Of the process, and for good once there are any: one test tells it all.
TEST(HostTargetsTest, APoolOfHostMemoryMakesPointersHostTargets) {  // contract 2
  if (HostTargets::any()) GTEST_SKIP() << "the process has some already";
  const cuda::Driver driver = host_targets_driver();
  const auto device_pool = reinterpret_cast<CUmemoryPool>(0x10);
  const auto other_device_pool = reinterpret_cast<CUmemoryPool>(0x20);
  const auto host_pool = reinterpret_cast<CUmemoryPool>(0x30);
  EXPECT_FALSE(HostTargets::include(driver, kHostMemory));
  EXPECT_EQ(host_targets_asked, 0u) << "there is none";
  for (int i = 0; i < 3; ++i) HostTargets::note_pool_block(driver, device_pool, kDeviceMemory);
  EXPECT_EQ(host_targets_asked, 1u) << "once for consecutive blocks of a pool";
  HostTargets::note_pool_block(driver, other_device_pool, kDeviceMemory);
  EXPECT_EQ(host_targets_asked, 2u);
  EXPECT_FALSE(HostTargets::any());
  HostTargets::note_pool_block(driver, host_pool, kHostMemory);
  EXPECT_TRUE(HostTargets::any());
  EXPECT_TRUE(HostTargets::include(driver, kHostMemory));
  EXPECT_FALSE(HostTargets::include(driver, kDeviceMemory));
  host_targets_result = CUDA_ERROR_INVALID_VALUE;
  EXPECT_TRUE(HostTargets::include(driver, kDeviceMemory)) << "unknown to the driver";
  host_targets_asked = 0;
  HostTargets::note_pool_block(driver, device_pool, kDeviceMemory);
  EXPECT_EQ(host_targets_asked, 0u) << "there are some: nothing can be learned";
}

// By its type; or by its address, for page-locked memory has device pointers too.
template <typename Copy>
void expect_either_side_counts() {
  const cuda::Driver driver = host_targets_driver();
  HostTargets::made();
  Copy copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = copy.dstDevice = kDeviceMemory;
  EXPECT_FALSE(HostTargets::in_copy(driver, &copy));
  for (CUmemorytype Copy::*const type : {&Copy::srcMemoryType, &Copy::dstMemoryType}) {
    for (const CUmemorytype host : {CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_UNIFIED}) {
      copy.*type = host;
      EXPECT_TRUE(HostTargets::in_copy(driver, &copy));
    }
    copy.*type = CU_MEMORYTYPE_ARRAY;
    EXPECT_FALSE(HostTargets::in_copy(driver, &copy));
    copy.*type = CU_MEMORYTYPE_DEVICE;
  }
  for (CUdeviceptr Copy::*const device : {&Copy::srcDevice, &Copy::dstDevice}) {
    copy.*device = kHostMemory;
    EXPECT_TRUE(HostTargets::in_copy(driver, &copy));
    copy.*device = kDeviceMemory;
  }
  const Copy* const none = nullptr;
  EXPECT_FALSE(HostTargets::in_copy(driver, none)) << "the driver has refused it";
}

TEST(HostTargetsTest, ACopyTouchesHostMemoryIfEitherSideDoes) {
  expect_either_side_counts<CUDA_MEMCPY2D>();
  expect_either_side_counts<CUDA_MEMCPY3D>();
  expect_either_side_counts<CUDA_MEMCPY3D_PEER>();
}

TEST(HostTargetsTest, AStreamMemoryOperationTouchesTheWordThatItNames) {
  const cuda::Driver driver = host_targets_driver();
  HostTargets::made();
  std::vector<CUstreamBatchMemOpParams> operations(3);
  const auto touch = [&] {
    return HostTargets::in_operations(driver, static_cast<unsigned>(operations.size()),
                                      operations.data());
  };
  for (CUstreamBatchMemOpParams& each : operations) {
    each.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    each.writeValue.address = kDeviceMemory;
  }
  EXPECT_FALSE(touch());
  operations.back().operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
  operations.back().waitValue.address = kHostMemory;
  EXPECT_TRUE(touch());
  for (const auto without : {CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES, CU_STREAM_MEM_OP_BARRIER}) {
    operations.back().operation = without;
    EXPECT_FALSE(touch()) << "it names no word";
  }
  EXPECT_FALSE(HostTargets::in_operations(driver, 0, nullptr));
}

}  // namespace
}  // namespace cupool::engine
