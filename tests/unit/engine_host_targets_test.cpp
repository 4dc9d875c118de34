// SPDX-License-Identifier: Apache-2.0
// Which copies and stream memory operations touch host memory (contract 2).
#include "engine/reclaim/host_targets.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/reclaim/pinned_memory.h"

namespace cupool::engine {
namespace {

using PoolMemory = HostTargets::PoolMemory;

constexpr CUdeviceptr kDeviceMemory = 0x1000;
constexpr CUdeviceptr kHostMemory = 0x2000;
constexpr CUdeviceptr kManagedMemory = 0x3000;
unsigned host_targets_asked = 0;
CUresult host_targets_result = CUDA_SUCCESS;

cuda::Driver host_targets_driver() {
  host_targets_asked = 0;
  host_targets_result = CUDA_SUCCESS;
  cuda::Driver driver;
  driver.cuPointerGetAttribute = [](void* value, CUpointer_attribute attribute,
                                    CUdeviceptr address) {
    if (attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED) {
      *static_cast<unsigned*>(value) = address == kManagedMemory ? 1 : 0;
      return host_targets_result;
    }
    ++host_targets_asked;
    *static_cast<unsigned*>(value) =
        address == kDeviceMemory ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    return host_targets_result;
  };
  return driver;
}

CUmemoryPool pool_with(std::uintptr_t handle) {
  return reinterpret_cast<CUmemoryPool>(handle);
}

class PoolsOfTheProgram : public testing::Test {
 protected:
  PoolsOfTheProgram() { start(); }
  ~PoolsOfTheProgram() override { start(); }
  static void start() {
    HostTargets::forget_pools();
    PinnedMemory::reset();
  }
  PoolMemory memory_of(CUdeviceptr address) { return HostTargets::memory_of(driver_, address); }
  const cuda::Driver driver_ = host_targets_driver();
};

TEST_F(PoolsOfTheProgram, ConsistOfWhatTheDriverSays) {
  EXPECT_EQ(memory_of(kDeviceMemory), PoolMemory::device);
  EXPECT_EQ(memory_of(kHostMemory), PoolMemory::host);
  EXPECT_EQ(memory_of(kManagedMemory), PoolMemory::managed);
  host_targets_result = CUDA_ERROR_ILLEGAL_ADDRESS;
  EXPECT_EQ(memory_of(kHostMemory), PoolMemory::unknown) << "an error says nothing of it";
  EXPECT_FALSE(PinnedMemory::any());
}

// The next pool may get the handle of one that was destroyed.
TEST_F(PoolsOfTheProgram, AreKnownUntilTheirEnd) {
  EXPECT_FALSE(HostTargets::knows(pool_with(0x10)));
  HostTargets::remember(pool_with(0x10));
  HostTargets::remember(pool_with(0x20));
  EXPECT_TRUE(HostTargets::knows(pool_with(0x10)));
  EXPECT_TRUE(HostTargets::knows(pool_with(0x20)));
  HostTargets::forget(pool_with(0x10));
  EXPECT_FALSE(HostTargets::knows(pool_with(0x10)));
  EXPECT_TRUE(HostTargets::knows(pool_with(0x20)));
  HostTargets::forget_pools();
  EXPECT_FALSE(HostTargets::knows(pool_with(0x20)));
}

// Of the process, and for good once there are any: one test tells it all.
TEST_F(PoolsOfTheProgram, HostMemoryElsewhereMakesPointersHostTargets) {  // contract 2
  if (HostTargets::any()) GTEST_SKIP() << "the process has some already";
  EXPECT_FALSE(HostTargets::include(driver_, kHostMemory));
  EXPECT_EQ(host_targets_asked, 0u) << "there is none";
  HostTargets::note_foreign(driver_, kDeviceMemory);
  EXPECT_FALSE(HostTargets::any());
  EXPECT_FALSE(PinnedMemory::any());
  HostTargets::note_foreign(driver_, kHostMemory);
  EXPECT_TRUE(HostTargets::any());
  EXPECT_TRUE(PinnedMemory::any()) << "any word may be an address in it";
  EXPECT_TRUE(PinnedMemory::is_argument(driver_, nullptr, nullptr, nullptr));
  EXPECT_TRUE(HostTargets::include(driver_, kHostMemory));
  EXPECT_FALSE(HostTargets::include(driver_, kDeviceMemory));
  host_targets_result = CUDA_ERROR_INVALID_VALUE;
  EXPECT_TRUE(HostTargets::include(driver_, kDeviceMemory)) << "unknown to the driver";
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
