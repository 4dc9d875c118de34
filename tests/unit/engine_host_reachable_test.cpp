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
  const auto end = [] { return CUDA_SUCCESS; };
  EXPECT_EQ(reachable.end(Kind::managed, 0x2000, end), CUDA_SUCCESS);
  EXPECT_EQ(reachable.end(Kind::zero_copy, 0x1000, end), CUDA_SUCCESS);
  EXPECT_TRUE(reachable.any(Kind::managed));
  EXPECT_TRUE(reachable.holds(Kind::managed, 0x1000));
  EXPECT_FALSE(reachable.holds(Kind::zero_copy, 0x1000));
  EXPECT_EQ(reachable.end(Kind::managed, 0x1000, end), CUDA_SUCCESS);
  EXPECT_FALSE(reachable.holds(Kind::managed, 0x1000));
  EXPECT_FALSE(reachable.any(Kind::managed));
  EXPECT_EQ(reachable.bytes(Kind::managed), 0u);
}

// The driver may wait for kernels that reach it, and a free of other memory needs to know of them.
TEST(HostReachableTest, MemoryCountsUntilTheDriverHasFreedIt) {
  for (const CUresult result : {CUDA_SUCCESS, CUDA_ERROR_UNKNOWN}) {
    HostReachable reachable;
    reachable.add(Kind::zero_copy, 0x1000, {100, nullptr});
    const auto free = [&] {
      EXPECT_TRUE(reachable.any(Kind::zero_copy));
      EXPECT_EQ(reachable.bytes(Kind::zero_copy), 100u);
      EXPECT_FALSE(reachable.holds(Kind::zero_copy, 0x1000));
      return result;
    };
    EXPECT_EQ(reachable.end(Kind::zero_copy, 0x1000, free), result);
    EXPECT_EQ(reachable.holds(Kind::zero_copy, 0x1000), result != CUDA_SUCCESS);
    EXPECT_EQ(reachable.bytes(Kind::zero_copy), result == CUDA_SUCCESS ? 0u : 100u);
  }
}

// Another thread may get the address while the driver frees it, and add its own memory there.
TEST(HostReachableTest, MemoryAtAnAddressThatIsJustFreedIsKept) {
  for (const CUresult result : {CUDA_SUCCESS, CUDA_ERROR_UNKNOWN}) {
    HostReachable reachable;
    reachable.add(Kind::managed, 0x1000, {100, nullptr});
    const auto free = [&] {
      reachable.add(Kind::managed, 0x1000, {7, nullptr});
      return result;
    };
    EXPECT_EQ(reachable.end(Kind::managed, 0x1000, free), result);
    EXPECT_TRUE(reachable.holds(Kind::managed, 0x1000));
    EXPECT_EQ(reachable.bytes(Kind::managed), 7u);
  }
}

// The address has come again before anybody saw that the old memory was gone.
TEST(HostReachableTest, MemoryThatIsAddedAgainIsTheNewOne) {
  const auto* const ended = reinterpret_cast<const Context*>(0x10);
  HostReachable reachable;
  reachable.add(Kind::managed, 0x1000, {100, ended});
  reachable.add(Kind::managed, 0x1000, {7, nullptr});
  EXPECT_EQ(reachable.bytes(Kind::managed), 7u);
  reachable.forget(
      [&](std::uintptr_t, const HostReachable::Memory& memory) { return memory.context == ended; });
  EXPECT_EQ(reachable.bytes(Kind::managed), 7u);
}

TEST(HostReachableTest, WhatIsGoneIsForgotten) {
  const auto* const ends = reinterpret_cast<const Context*>(0x10);
  const auto* const stays = reinterpret_cast<const Context*>(0x20);
  HostReachable reachable;
  reachable.add(Kind::managed, 0x1000, {100, ends});
  reachable.add(Kind::managed, 0x2000, {20, ends});
  reachable.add(Kind::managed, 0x3000, {3, stays});
  reachable.add(Kind::zero_copy, 0x4000, {0, ends});
  reachable.forget([&](std::uintptr_t start, const HostReachable::Memory& memory) {
    return memory.context == ends && start != 0x2000;
  });
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
    reachable.end(Kind::managed, i << 12, [] { return CUDA_SUCCESS; });
    sum -= reachable.bytes(Kind::managed);
  }
  EXPECT_FALSE(reachable.any(Kind::managed));
  EXPECT_NE(sum, 0u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

}  // namespace
}  // namespace cupool::engine
