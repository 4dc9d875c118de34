// SPDX-License-Identifier: Apache-2.0
// Size classes: rounding, the bound on it, and that each capacity has one list of its own.
#include "engine/block/size_class.h"

#include <gtest/gtest.h>

#include <set>

namespace cupool::engine {
namespace {

TEST(SizeClass, CapacityHoldsTheRequestInUnitsOf512Bytes) {
  for (std::uint64_t bytes = 1; bytes < (5ull << 20); bytes += bytes / 97 + 1) {
    const std::uint64_t capacity = capacity_for(bytes);
    ASSERT_GE(capacity, bytes);
    ASSERT_EQ(capacity % kAlignment, 0u) << bytes;
    ASSERT_EQ(capacity_for(capacity), capacity) << "a capacity serves itself: " << bytes;
  }
}

TEST(SizeClass, RoundingIsAtMostAnEighthAboveFourKiB) {
  for (std::uint64_t bytes = kLinearLimit; bytes <= kLargeUnit; bytes += 511) {
    ASSERT_LE(capacity_for(bytes) - bytes, bytes / 8) << bytes;
  }
}

TEST(SizeClass, LargeBlocksAreMultiplesOfTwoMiBAsTheDriversAre) {
  EXPECT_EQ(capacity_for(kLargeUnit), kLargeUnit);
  EXPECT_EQ(capacity_for(kLargeUnit + 1), 2 * kLargeUnit);
  EXPECT_EQ(capacity_for(1ull << 40), 1ull << 40);
  EXPECT_EQ(capacity_for((1ull << 40) + 1), (1ull << 40) + kLargeUnit);
}

TEST(SizeClass, ALargeRequestWastesAnEighthOr32MiBAtMost) {
  constexpr std::uint64_t kMiB = 1 << 20;
  EXPECT_EQ(most_waste(64 * kMiB), 8 * kMiB);
  EXPECT_EQ(most_waste(256 * kMiB), 32 * kMiB);
  EXPECT_EQ(most_waste(4096 * kMiB), 32 * kMiB);
}

TEST(SizeClass, EachSmallCapacityHasItsOwnList) {
  std::set<std::uint64_t> capacities;
  std::set<std::size_t> lists;
  for (std::uint64_t bytes = 1; bytes < kLargeUnit; bytes += 256) {
    const std::uint64_t capacity = capacity_for(bytes);
    if (is_large(capacity)) continue;
    ASSERT_LT(small_class(capacity), kSmallClasses) << capacity;
    capacities.insert(capacity);
    lists.insert(small_class(capacity));
  }
  EXPECT_EQ(capacities.size(), lists.size());
  EXPECT_GT(lists.size(), 70u);
}

TEST(SizeClass, OfARequestIsThatOfItsCapacity) {
  for (std::uint64_t bytes = 1; bytes <= 2 * kLargeUnit; bytes += bytes < 9000 ? 1 : 257) {
    const std::uint64_t capacity = capacity_for(bytes);
    if (is_large(capacity)) {
      ASSERT_GE(small_class_of_request(bytes), small_class(kLargeUnit)) << bytes;
    } else {
      ASSERT_EQ(small_class_of_request(bytes), small_class(capacity)) << bytes;
    }
  }
}

}  // namespace
}  // namespace cupool::engine
