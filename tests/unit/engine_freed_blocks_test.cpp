// SPDX-License-Identifier: Apache-2.0
// What a thread has freed: nothing lost, nothing twice, and kinds apart.
#include "engine/block/freed_blocks.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <set>
#include <vector>

namespace cupool::engine {
namespace {

class FreedBlocksTest : public testing::Test {
 protected:
  // Capacity 0: a large block that has no kind.
  Block* block(std::uint64_t capacity, bool of_pool = true) {
    Block& made = blocks_.emplace_back();
    made.capacity = capacity != 0 ? capacity : 2 * kLargeUnit;
    if (capacity != 0) made.kind = kind_of_small(small_class(capacity), of_pool);
    return &made;
  }
  static std::vector<Block*> all_of(const BlockList& list) {
    std::vector<Block*> found;
    std::uint64_t bytes = 0;
    for (Block* each = list.head; each != nullptr; each = each->next) {
      found.push_back(each);
      bytes += each->capacity;
      if (found.size() > list.count) break;
    }
    EXPECT_EQ(found.size(), list.count);
    EXPECT_EQ(bytes, list.bytes);
    EXPECT_EQ(list.tail, found.empty() ? nullptr : found.back());
    return found;
  }
  std::deque<Block> blocks_;
};

TEST_F(FreedBlocksTest, OneBlockIsAChainOfItsOwn) {
  FreedBatch batch;
  EXPECT_TRUE(batch.empty());
  Block* const only = block(1024);
  batch.push(only);
  EXPECT_EQ(batch.count(), 1u);
  EXPECT_EQ(batch.bytes(), 1024u);
  FreedBlocks taken = batch.pop_all();
  EXPECT_TRUE(batch.empty());
  EXPECT_EQ(batch.bytes(), 0u);
  EXPECT_EQ(taken.bytes, 1024u);
  EXPECT_EQ(all_of(taken.chains.pop()), std::vector<Block*>{only});
  EXPECT_TRUE(taken.empty());
}

TEST_F(FreedBlocksTest, BlocksWithoutAKindAreSomeToo) {
  FreedBatch batch;
  batch.push(block(0));
  FreedBlocks taken = batch.pop_all();
  EXPECT_FALSE(taken.empty());
  EXPECT_EQ(taken.pop_all().count, 1u);
  EXPECT_TRUE(taken.empty());
}

TEST_F(FreedBlocksTest, EachKindIsAChainWithTheBlockFreedLastInFront) {
  FreedBatch batch;
  std::vector<Block*> small;
  std::vector<Block*> other;
  for (int i = 0; i < 3; ++i) {
    batch.push(small.emplace_back(block(512)));
    batch.push(other.emplace_back(block(1ull << 20)));
  }
  FreedBlocks taken = batch.pop_all();
  EXPECT_TRUE(taken.others.empty());
  std::set<std::vector<Block*>> chains;
  while (!taken.chains.empty()) chains.insert(all_of(taken.chains.pop()));
  const std::set<std::vector<Block*>> expected{{small[2], small[1], small[0]},
                                               {other[2], other[1], other[0]}};
  EXPECT_EQ(chains, expected);
}

TEST_F(FreedBlocksTest, WhatIsOfAnotherSourceOrOfNoKindNeedsALook) {
  FreedBatch batch;
  Block* const of_pool = block(4096);
  Block* const plain = block(4096, false);
  Block* const large = block(0);
  Block* const shared = block(4096);
  shared->set_shared_outside();
  for (Block* each : {of_pool, plain, large, shared}) batch.push(each);
  FreedBlocks taken = batch.pop_all();
  EXPECT_EQ(taken.count(), 4u);
  EXPECT_EQ(taken.bytes, 3 * 4096 + 2 * kLargeUnit);
  EXPECT_EQ(all_of(taken.chains.pop()), std::vector<Block*>{of_pool});
  EXPECT_TRUE(taken.chains.empty());
  EXPECT_EQ(all_of(taken.others), (std::vector<Block*>{plain, large, shared}));
}

TEST_F(FreedBlocksTest, PlainBlocksAloneAreAChainAsWell) {
  FreedBatch batch;
  batch.push(block(4096, false));
  batch.push(block(4096, false));
  const FreedBlocks taken = batch.pop_all();
  EXPECT_EQ(taken.chains.count(), 2u);
  EXPECT_TRUE(taken.others.empty());
}

// Batches of any make, merged or not: every block comes out once.
TEST_F(FreedBlocksTest, EveryBlockComesOutOnce) {
  std::mt19937 random(20261123);
  FreedBatch batch;
  for (int round = 0; round < 200; ++round) {
    std::set<Block*> put_in;
    std::uint64_t bytes = 0;
    FreedBlocks waiting;
    for (unsigned part = random() % 4; part-- != 0;) {
      for (unsigned i = random() % 50; i-- != 0;) {
        const std::uint64_t request = random() % 8 == 0 ? 0 : 1 + random() % (kLargeUnit / 2);
        Block* const each = block(request == 0 ? 0 : capacity_for(request), random() % 4 != 0);
        if (random() % 16 == 0) each->set_shared_outside();
        put_in.insert(each);
        bytes += each->capacity;
        batch.push(each);
      }
      FreedBlocks joining = batch.pop_all();
      waiting.splice(joining);
      EXPECT_TRUE(joining.empty());
      EXPECT_EQ(joining.bytes, 0u);
    }
    EXPECT_EQ(waiting.count(), put_in.size());
    EXPECT_EQ(waiting.bytes, bytes);
    const std::vector<Block*> taken = all_of(waiting.pop_all());
    EXPECT_EQ(std::set<Block*>(taken.begin(), taken.end()), put_in);
    EXPECT_EQ(taken.size(), put_in.size());
    EXPECT_TRUE(waiting.empty());
    EXPECT_EQ(waiting.bytes, 0u);
  }
}

}  // namespace
}  // namespace cupool::engine
