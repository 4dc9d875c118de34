// SPDX-License-Identifier: Apache-2.0
// The shared cache.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>

#include "engine/block/block_cache.h"

namespace cupool::engine {
namespace {

class BlockCacheTest : public testing::Test {
 protected:
  Block* block(std::uint64_t capacity) {
    Block& made = blocks_.emplace_back();
    made.address = next_address_ += capacity;
    made.capacity = capacity;
    made.state.store(BlockState::cached);
    return &made;
  }
  void cache(std::uint64_t capacity) {
    BlockList list;
    list.push(block(capacity));
    cache_.cache(list);
  }
  std::deque<Block> blocks_;
  CUdeviceptr next_address_ = 1ull << 30;
  BlockCache cache_;
};

TEST_F(BlockCacheTest, SmallRequestsGetExactlyTheirClass) {
  cache(1024);
  EXPECT_EQ(cache_.pop(512), nullptr);
  EXPECT_EQ(cache_.pop(1536), nullptr);
  Block* taken = cache_.pop(1024);
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->capacity, 1024u);
  EXPECT_EQ(cache_.pop(1024), nullptr) << "a block is handed out once";
  EXPECT_EQ(cache_.bytes(), 0u);
}

// Small blocks are given and taken in chains.
TEST_F(BlockCacheTest, EveryBlockComesBackOnceWhateverIsTakenAtATime) {
  constexpr std::uint64_t kSize = 1024;
  for (const std::size_t most : {std::size_t{0}, std::size_t{1}, std::size_t{5}, std::size_t{127},
                                 std::size_t{128}, std::size_t{1000}}) {
    std::set<Block*> put_in;
    for (const int length : {1, 300, 2, 128, 129, 3}) {
      BlockList list;
      for (int i = 0; i < length; ++i) list.push(block(kSize));
      list.push(block(2 * kSize));  // ends a chain
      for (Block* each = list.head; each != nullptr; each = each->next) {
        if (each->capacity == kSize) put_in.insert(each);
      }
      cache_.cache(list);
      EXPECT_TRUE(list.empty());
    }
    while (!put_in.empty()) {
      BlockList more;
      Block* first = cache_.pop(kSize, most, ~0ull, &more);
      ASSERT_NE(first, nullptr);
      EXPECT_EQ(more.count, std::min(most, put_in.size() - 1));
      EXPECT_EQ(more.bytes, more.count * kSize);
      more.push(first);
      while (Block* each = more.pop()) ASSERT_EQ(put_in.erase(each), 1u);
    }
    EXPECT_EQ(cache_.pop(kSize), nullptr);
    for (int i = 0; i < 6; ++i) ASSERT_NE(cache_.pop(2 * kSize), nullptr);
    EXPECT_EQ(cache_.bytes(), 0u);
    EXPECT_FALSE(cache_.may_have(kSize));
  }
}

TEST_F(BlockCacheTest, NoMoreBytesAreTakenThanAskedButOneBlock) {
  BlockList list;
  for (int i = 0; i < 10; ++i) list.push(block(1024));
  cache_.cache(list);
  BlockList more;
  EXPECT_NE(cache_.pop(1024, 100, 4096, &more), nullptr);
  EXPECT_EQ(more.count, 3u);
  BlockList none;
  EXPECT_NE(cache_.pop(1024, 100, 100, &none), nullptr);
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(cache_.bytes(), 5u * 1024);
}

TEST_F(BlockCacheTest, LargeRequestsGetTheBestFitWithinAnEighth) {
  cache(64ull << 20);
  cache(34ull << 20);
  cache(36ull << 20);
  Block* taken = cache_.pop(32ull << 20);
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->capacity, 34ull << 20);
  taken = cache_.pop(32ull << 20);
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->capacity, 36ull << 20);
  EXPECT_EQ(cache_.pop(32ull << 20), nullptr) << "64 MiB for 32 would waste half";
}

TEST_F(BlockCacheTest, NoMoreLargeClassesGiveUpWhatIsUnneededThanWasAskedFor) {
  for (const std::uint64_t capacity : {std::uint64_t{4} << 20, std::uint64_t{8} << 20}) {
    for (int i = 0; i < 3; ++i) cache(capacity);
  }
  for (std::size_t step = 0; step < BlockCache::kDecaySteps; ++step) cache_.end_decay_step();
  EXPECT_EQ(cache_.evict_unneeded(1).count, 1u);
  EXPECT_EQ(cache_.evict_unneeded(UINT64_MAX).count, 5u);
}

// Decay: so many blocks of a class as have lain idle for all of the last steps are not needed.
TEST_F(BlockCacheTest, WhatHasLainIdleForAllStepsIsUnneeded) {
  for (const std::uint64_t capacity : {std::uint64_t{1024}, std::uint64_t{4} << 20}) {
    for (int i = 0; i < 5; ++i) cache(capacity);
    cache_.end_decay_step();
    for (std::size_t step = 1; step < BlockCache::kDecaySteps; ++step) {
      EXPECT_TRUE(cache_.evict_unneeded(UINT64_MAX).empty()) << "not for all of them yet";
      // Two are needed in one of the steps, though they are there at its beginning and end.
      if (step == 2) {
        BlockList taken;
        for (int i = 0; i < 2; ++i) taken.push(cache_.pop(capacity));
        cache_.cache(taken);
      }
      cache_.end_decay_step();
    }
    EXPECT_EQ(cache_.evict_unneeded(1).count, 1u) << "no more than was asked for";
    EXPECT_EQ(cache_.evict_unneeded(UINT64_MAX).count, 2u);
    EXPECT_TRUE(cache_.evict_unneeded(UINT64_MAX).empty());
    for (std::size_t step = 0; step < BlockCache::kDecaySteps; ++step) cache_.end_decay_step();
    EXPECT_EQ(cache_.evict_unneeded(UINT64_MAX).count, 2u) << "and then nobody did";
    EXPECT_EQ(cache_.bytes(), 0u);
  }
}

TEST_F(BlockCacheTest, BeforeGrowthTheSmallestBlockThatFitsGoesBack) {
  cache(8ull << 20);
  cache(64ull << 20);
  cache(128ull << 20);
  BlockList evicted = cache_.evict_for(32ull << 20);
  ASSERT_EQ(evicted.count, 1u);
  EXPECT_EQ(evicted.bytes, 64ull << 20);
}

TEST_F(BlockCacheTest, BeforeGrowthBlocksOfTheRequestsSizeGoBackWhereNoneFits) {
  for (int i = 0; i < 10; ++i) cache(8ull << 20);
  BlockList evicted = cache_.evict_for(32ull << 20);
  EXPECT_EQ(evicted.bytes, 32ull << 20);
  EXPECT_EQ(cache_.bytes(), 48ull << 20);
}

TEST_F(BlockCacheTest, EvictToKeepsNoMoreThanAsked) {
  cache(4ull << 20);
  for (int i = 0; i < 100; ++i) cache(4096);
  BlockList evicted = cache_.evict_to(10 * 4096);
  EXPECT_EQ(cache_.bytes(), 10u * 4096);
  EXPECT_EQ(evicted.bytes, (4ull << 20) + 90 * 4096);
  evicted = cache_.evict_to(0);
  EXPECT_EQ(cache_.bytes(), 0u);
  EXPECT_EQ(evicted.count, 10u);
}

// Epochs of another context say nothing about it.
TEST(NewBlock, KnowsNothingOfTheLastOnesLane) {
  Block* const block = new_block();
  block->lane_epoch = 7;
  delete_block(block);
  Block* const next = new_block();
  ASSERT_EQ(next, block) << "records are used again";
  EXPECT_EQ(next->lane_epoch, 0u);
  delete_block(next);
}

}  // namespace
}  // namespace cupool::engine
