// SPDX-License-Identifier: Apache-2.0
// Host memory that kernels can reach is counted until it is gone, at a cost that does not grow.
#include "engine/reclaim/host_reachable.h"

#include <gtest/gtest.h>

#include <chrono>

namespace cupool::engine {
namespace {

using Kind = HostReachable::Kind;

TEST(HostReachableTest, MemoryIsCountedUntilItIsGone) {
  HostReachable reachable;
  EXPECT_FALSE(reachable.any(Kind::managed));
  reachable.add(Kind::managed, 0x1000, {100, nullptr});
  reachable.add(Kind::managed, 0x1000, {100, nullptr});
  EXPECT_TRUE(reachable.any(Kind::managed));
  EXPECT_FALSE(reachable.any(Kind::zero_copy));
  EXPECT_EQ(reachable.bytes(Kind::managed), 100u);
  EXPECT_FALSE(reachable.take(Kind::managed, 0x2000));
  EXPECT_FALSE(reachable.take(Kind::zero_copy, 0x1000));
  EXPECT_TRUE(reachable.any(Kind::managed));
  EXPECT_TRUE(reachable.holds(Kind::managed, 0x1000));
  EXPECT_FALSE(reachable.holds(Kind::zero_copy, 0x1000));
  EXPECT_EQ(reachable.take(Kind::managed, 0x1000)->bytes, 100u);
  EXPECT_FALSE(reachable.holds(Kind::managed, 0x1000));
  EXPECT_FALSE(reachable.any(Kind::managed));
  EXPECT_EQ(reachable.bytes(Kind::managed), 0u);
}

TEST(HostReachableTest, AllOfItCanGoAtOnce) {
  HostReachable reachable;
  reachable.add(Kind::managed, 0x1000, {100, nullptr});
  reachable.add(Kind::zero_copy, 0x2000, {0, nullptr});
  reachable.clear();
  EXPECT_FALSE(reachable.any(Kind::managed));
  EXPECT_FALSE(reachable.any(Kind::zero_copy));
  EXPECT_EQ(reachable.bytes(Kind::managed), 0u);
}

TEST(HostReachableTest, MemoryGoesWithItsContextIfTheDriverSaysSo) {
  const auto* const ends = reinterpret_cast<const Context*>(0x10);
  const auto* const stays = reinterpret_cast<const Context*>(0x20);
  HostReachable reachable;
  reachable.add(Kind::managed, 0x1000, {100, ends});
  reachable.add(Kind::managed, 0x2000, {20, ends});
  reachable.add(Kind::managed, 0x3000, {3, stays});
  reachable.add(Kind::zero_copy, 0x4000, {0, ends});
  reachable.forget(*ends, [](std::uintptr_t start) { return start != 0x2000; });
  EXPECT_EQ(reachable.bytes(Kind::managed), 23u);
  EXPECT_FALSE(reachable.holds(Kind::managed, 0x1000));
  EXPECT_FALSE(reachable.any(Kind::zero_copy));
}

// By scanning, 200,000 of each would take minutes.
TEST(HostReachableTest, ManyAllocationsCostNoMoreThanFew) {
  constexpr std::uintptr_t kMany = 200'000;
  HostReachable reachable;
  const auto begin = std::chrono::steady_clock::now();
  std::uint64_t sum = 0;
  for (std::uintptr_t i = 1; i <= kMany; ++i) {
    reachable.add(Kind::managed, i << 12, {i, nullptr});
    sum += reachable.bytes(Kind::managed);
  }
  EXPECT_EQ(reachable.bytes(Kind::managed), kMany * (kMany + 1) / 2);
  for (std::uintptr_t i = 1; i <= kMany; ++i) {
    reachable.take(Kind::managed, i << 12);
    sum -= reachable.bytes(Kind::managed);
  }
  EXPECT_FALSE(reachable.any(Kind::managed));
  EXPECT_NE(sum, 0u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

// Of the process, and for good once there are any: one test tells it all.
TEST(HostTargetsTest, APoolOfHostMemoryMakesPointersHostTargets) {  // contract 2
  if (HostTargets::any()) GTEST_SKIP() << "the process has some already";
  static unsigned asked = 0;
  static CUresult result = CUDA_SUCCESS;
  cuda::Driver driver;
  constexpr CUdeviceptr kDeviceMemory = 0x1000;
  constexpr CUdeviceptr kHostMemory = 0x2000;
  driver.cuPointerGetAttribute = [](void* value, CUpointer_attribute, CUdeviceptr address) {
    ++asked;
    *static_cast<unsigned*>(value) =
        address == kDeviceMemory ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    return result;
  };
  const auto device_pool = reinterpret_cast<CUmemoryPool>(0x10);
  const auto other_device_pool = reinterpret_cast<CUmemoryPool>(0x20);
  const auto host_pool = reinterpret_cast<CUmemoryPool>(0x30);
  EXPECT_FALSE(HostTargets::include(driver, kHostMemory));
  EXPECT_EQ(asked, 0u) << "there is none";
  for (int i = 0; i < 3; ++i) HostTargets::note_pool_block(driver, device_pool, kDeviceMemory);
  EXPECT_EQ(asked, 1u) << "once for consecutive blocks of a pool";
  HostTargets::note_pool_block(driver, other_device_pool, kDeviceMemory);
  EXPECT_EQ(asked, 2u);
  EXPECT_FALSE(HostTargets::any());
  HostTargets::note_pool_block(driver, host_pool, kHostMemory);
  EXPECT_TRUE(HostTargets::any());
  EXPECT_TRUE(HostTargets::include(driver, kHostMemory));
  EXPECT_FALSE(HostTargets::include(driver, kDeviceMemory));
  result = CUDA_ERROR_INVALID_VALUE;
  EXPECT_TRUE(HostTargets::include(driver, kDeviceMemory)) << "unknown to the driver";
  asked = 0;
  HostTargets::note_pool_block(driver, device_pool, kDeviceMemory);
  EXPECT_EQ(asked, 0u) << "there are some: nothing can be learned";
}

}  // namespace
}  // namespace cupool::engine
