// SPDX-License-Identifier: Apache-2.0
// A thread's cache alone: what it hands out and keeps, when its batch is due, which epoch it joins,
// and what a drain takes.
#include "engine_thread_cache_fixture.h"

namespace cupool::engine {
namespace {

TEST_F(ThreadCacheTest, ASmallRequestGetsABlockOfItsClassTheLastOneFirst) {
  EXPECT_EQ(cache_.idle.pop(kSmall), nullptr);
  const BlockList first = several(3, kSmall);
  const BlockList second = several(2, kSmall);
  const Blocks older = all_of(first);
  const Blocks newer = all_of(second);
  BlockList kept = first;
  cache_.idle.cache(kept, cache_.limits.cached);
  EXPECT_TRUE(kept.empty());
  kept = second;
  cache_.idle.cache(kept, cache_.limits.cached);
  EXPECT_EQ(cache_.idle.pop(kSmall - kAlignment), nullptr) << "a smaller class";
  EXPECT_EQ(cache_.idle.pop(kSmall + 1), nullptr) << "a larger one";
  EXPECT_EQ(cache_.idle.pop(kSmall - kAlignment + 1), newer[0]) << "the class, not the number";
  EXPECT_EQ(pop_all(kSmall), (Blocks{newer[1], older[0], older[1], older[2]}));
}

TEST_F(ThreadCacheTest, EveryClassHasItsOwnChain) {
  std::vector<std::uint64_t> capacities;
  for (std::uint64_t bytes = 1; bytes < kLargeUnit; bytes = capacities.back() + 1) {
    capacities.push_back(capacity_for(bytes));
    if (capacities.back() >= kLargeUnit) break;
  }
  for (const std::uint64_t capacity : capacities) EXPECT_TRUE(cache(2, capacity).empty());
  for (const std::uint64_t capacity : capacities) {
    const Blocks taken = pop_all(capacity);
    ASSERT_EQ(taken.size(), 2u) << capacity;
    for (const Block* each : taken) EXPECT_EQ(each->capacity, capacity);
  }
}

TEST_F(ThreadCacheTest, ALargeRequestGetsTheBestFit) {
  for (const std::uint64_t capacity : {36 * kMiB, 34 * kMiB, 36 * kMiB, 64 * kMiB}) {
    cache(1, capacity);
  }
  const auto taken = [&](std::uint64_t bytes) {
    const Block* const found = cache_.idle.pop(bytes);
    return found == nullptr ? 0 : found->capacity / kMiB;
  };
  EXPECT_EQ(taken(32 * kMiB), 34u);
  EXPECT_EQ(taken(32 * kMiB), 36u);
  EXPECT_EQ(taken(32 * kMiB), 36u);
  EXPECT_EQ(taken(32 * kMiB), 0u) << "64 MiB for 32 would waste half";
  EXPECT_EQ(taken(66 * kMiB), 0u);
  cache(1, 62 * kMiB);
  EXPECT_EQ(taken(62 * kMiB - 1), 62u);
  EXPECT_EQ(taken(64 * kMiB), 64u);
  EXPECT_EQ(taken(2 * kMiB), 0u);
  cache(1, 2 * kMiB);
  EXPECT_EQ(taken(2 * kMiB), 2u);
}

TEST_F(ThreadCacheTest, LargeBlocksHaveSoManyPlaces) {
  constexpr std::size_t kPlaces = 48;
  BlockList rest = cache(kPlaces + 2, 2 * kMiB);
  EXPECT_EQ(rest.count, 2u);
  ASSERT_NE(cache_.idle.pop(2 * kMiB), nullptr);
  cache_.idle.cache(rest, cache_.limits.cached);
  EXPECT_EQ(all_of(rest).size(), 1u);
  EXPECT_EQ(pop_all(2 * kMiB).size(), kPlaces);
}

TEST_F(ThreadCacheTest, NoMoreIsKeptThanTheLimit) {
  limit(512, kMuch, kMuch, 5 * kSmall + kSmall / 2);
  BlockList rest = cache(10, kSmall);
  EXPECT_EQ(all_of(rest).size(), 5u) << "what is beyond stays with the caller";
  EXPECT_EQ(cache(1, 2 * kMiB).count, 1u);
  EXPECT_EQ(cache(1, kAlignment).count, 0u) << "half a block's room is left";
  ASSERT_NE(cache_.idle.pop(kSmall), nullptr);
  ASSERT_NE(cache_.idle.pop(kSmall), nullptr);
  cache_.idle.cache(rest, cache_.limits.cached);
  EXPECT_EQ(all_of(rest).size(), 3u) << "what was taken makes room";
  EXPECT_EQ(pop_all(kSmall).size(), 5u);

  limit(512, kMuch, kMuch, 8 * kMiB);
  EXPECT_EQ(cache(5, 2 * kMiB).count, 2u) << "the small one is still there";
  ASSERT_NE(cache_.idle.pop(2 * kMiB), nullptr);
  EXPECT_EQ(cache(2, 2 * kMiB).count, 1u);
}

TEST_F(ThreadCacheTest, TheHotPathCountsWhatItHandsOut) {
  EXPECT_EQ(cache_.pop_hot(kSmall), nullptr);
  EXPECT_TRUE(cache_.has_nothing_new());
  cache(1, kSmall);
  cache(1, 4 * kMiB);
  EXPECT_NE(cache_.pop_hot(kSmall - 1), nullptr);
  EXPECT_NE(cache_.pop_hot(4 * kMiB - 1), nullptr);
  EXPECT_EQ(cache_.tally.mallocs, 2u);
  EXPECT_EQ(cache_.tally.malloc_bytes, kSmall + 4 * kMiB - 2);
  EXPECT_EQ(cache_.tally.malloc_capacity, kSmall + 4 * kMiB);
  EXPECT_FALSE(cache_.has_nothing_new());
  cache(1, 4 * kMiB);
  for (const std::uint64_t nothing :
       {std::uint64_t{0}, (std::uint64_t{1} << 62) + 1, ~std::uint64_t{0}}) {
    EXPECT_EQ(cache_.pop_hot(nothing), nullptr) << nothing;
  }
  EXPECT_EQ(cache_.tally.mallocs, 2u);
}

// The statistics are to know about so much: the slow path tells them.
TEST_F(ThreadCacheTest, TheHotPathStopsWhereTheStatisticsAreToBeTold) {
  cache(4, kSmall);
  cache(1, 4 * kMiB);
  cache_.limits.tally = 2 * kSmall;
  EXPECT_EQ(cache_.pop_hot(4 * kMiB), nullptr);
  EXPECT_NE(cache_.pop_hot(kSmall), nullptr);
  EXPECT_NE(cache_.pop_hot(kSmall), nullptr);
  EXPECT_EQ(cache_.pop_hot(kSmall), nullptr);
  cache_.tally.fold(life_.stats);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(cache_.retire_hot(block(kSmall)));
    cache_.flush(ordering_.epochs());  // so that its batch is not due
  }
  EXPECT_FALSE(cache_.retire_hot(block(kSmall)));
  EXPECT_EQ(cache_.tally.frees, 2u) << "with nothing done";
  EXPECT_EQ(cache_.batch.bytes(), 0u);
}

TEST_F(ThreadCacheTest, ABatchIsDueByItsNumberOfBlocks) {
  limit(512, kMuch, kMuch, kMuch);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(free_until_due(), 512u);
    cache_.flush(ordering_.epochs());
  }
}

// So that the limits are known from then on.
TEST_F(ThreadCacheTest, TheFirstFreeOfAThreadIsDue) {
  ThreadCache fresh(life_.context.threads().caches());
  EXPECT_TRUE(fresh.retire(block(kSmall)));
}

// A fence is much for a few blocks.
TEST_F(ThreadCacheTest, ABatchIsDueByItsBytesFewBlocksLater) {
  limit(512, 32 * kSmall, 64 * kSmall, kMuch);
  EXPECT_EQ(free_until_due(), 32u);
  cache_.flush(ordering_.epochs());
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(cache_.retire(block(8 * kSmall))) << "few, below `few`";
  EXPECT_TRUE(cache_.retire(block(8 * kSmall)));
  EXPECT_TRUE(cache_.batch.is_due());
}

// An allocation has had the batch join before it was due: so the pending limit is looked at.
TEST_F(ThreadCacheTest, AnExpectedFreeIsDueAtOnce) {
  cache_.batch.expect_free();
  Block* const freed = block(kSmall);
  EXPECT_FALSE(cache_.retire_hot(freed));
  EXPECT_TRUE(cache_.retire(freed));
  cache_.flush(ordering_.epochs());
  limit(512, kMuch, kMuch, kMuch);
  EXPECT_FALSE(cache_.retire(block(kSmall)));
}

TEST_F(ThreadCacheTest, AHotFreeCountsAndLeavesTheDueOneToTheSlowPath) {
  limit(2, kMuch, kMuch, kMuch);
  EXPECT_TRUE(cache_.retire_hot(block(kSmall)));
  EXPECT_EQ(cache_.tally.frees, 1u);
  EXPECT_EQ(cache_.tally.free_bytes, kSmall);
  Block* const second = block(kSmall);
  EXPECT_FALSE(cache_.retire_hot(second)) << "two make a batch";
  EXPECT_EQ(cache_.tally.frees, 1u);
  EXPECT_EQ(cache_.batch.bytes(), kSmall);
  EXPECT_TRUE(cache_.retire(second));
}

TEST_F(ThreadCacheTest, AnEmptyBatchJoinsNothing) {
  cache_.flush(ordering_.epochs());
  EXPECT_TRUE(cache_.in_flight.empty());
  EXPECT_EQ(ordering_.newest(), kNoEpoch);
  EXPECT_EQ(cache_.in_flight.oldest(), kNeverComplete);
  EXPECT_GT(cache_.in_flight.oldest(), previous(kNeverComplete))
      << "that of no batch is never complete";
}

TEST_F(ThreadCacheTest, ABatchThatJoinsIsPendingAndInFlight) {
  cache_.retire(block(kSmall));
  cache_.retire(block(2 * kMiB));
  EXPECT_EQ(cache_.waiting_bytes(), kSmall + 2 * kMiB);
  EXPECT_EQ(ordering_.epochs().pending_bytes(), 0u);
  cache_.flush(ordering_.epochs());
  EXPECT_EQ(ordering_.epochs().pending_bytes(), kSmall + 2 * kMiB);
  EXPECT_EQ(cache_.batch.bytes(), 0u);
  EXPECT_EQ(cache_.waiting_bytes(), kSmall + 2 * kMiB);
  EXPECT_FALSE(cache_.in_flight.empty());
  EXPECT_EQ(cache_.in_flight.oldest(), ordering_.newest());
  EXPECT_GT(cache_.in_flight.oldest(), previous(ordering_.newest()));
  EXPECT_LE(cache_.in_flight.oldest(), ordering_.newest());
}

TEST_F(ThreadCacheTest, ABatchHasANumberUntilItJoins) {
  EXPECT_EQ(cache_.batch.number(), kNoBatch);
  EXPECT_FALSE(cache_.batch.is_filling(kNoBatch)) << "nobody is filling none";
  std::set<BatchNumber> numbers;
  for (int i = 0; i < 4; ++i) {
    cache_.retire(block(kSmall));
    const BatchNumber number = cache_.batch.number();
    EXPECT_TRUE(numbers.insert(number).second) << "never the same again";
    cache_.retire(block(kSmall));
    EXPECT_TRUE(cache_.batch.is_filling(number));
    if (i % 2 == 0) {
      cache_.flush(ordering_.epochs());
    } else {
      BlockList surplus;
      cache_.reclaim(kNoEpoch, true, &surplus, none);
    }
    EXPECT_FALSE(cache_.batch.is_filling(number));
    cache_.retire(block(kSmall));
    EXPECT_FALSE(cache_.batch.is_filling(number));
    cache_.flush(ordering_.epochs());
  }
}

// The program's own wait has completed it: no fence.
TEST_F(ThreadCacheTest, ACompleteBatchIsReclaimedWithoutAnEpoch) {
  Blocks freed{block(kSmall), block(2 * kMiB), block(kSmall, false)};
  for (Block* each : freed) cache_.retire(each);
  BlockList surplus;
  cache_.reclaim(kNoEpoch, true, &surplus, [&](const Block& each) { return &each == freed[2]; });
  EXPECT_EQ(all_of(surplus), Blocks{freed[2]});
  EXPECT_EQ(ordering_.newest(), kNoEpoch);
  EXPECT_EQ(cache_.waiting_bytes(), 0u);
  EXPECT_EQ(cache_.tally.reclaimed, static_cast<std::int64_t>(kSmall + 2 * kMiB));
  EXPECT_EQ(cache_.idle.pop(kSmall), freed[0]);
  EXPECT_EQ(cache_.idle.pop(2 * kMiB), freed[1]);
}

TEST_F(ThreadCacheTest, OnlyBatchesOfCompleteEpochsAreReclaimed) {  // I1
  const Blocks freed{block(kSmall), block(kSmall), block(kSmall)};
  const EpochNumber first = join_epoch({freed[0]});
  const EpochNumber second = join_epoch({freed[1]});
  const EpochNumber third = join_epoch({freed[2]});
  EXPECT_LT(first, second);
  EXPECT_LT(second, third);
  EXPECT_TRUE(reclaim(previous(first)).empty());
  EXPECT_EQ(cache_.idle.pop(kSmall), nullptr);
  EXPECT_TRUE(reclaim(second).empty());
  EXPECT_EQ(pop_all(kSmall), (Blocks{freed[1], freed[0]}));
  EXPECT_EQ(cache_.waiting_bytes(), kSmall);
  EXPECT_EQ(cache_.in_flight.oldest(), third);
  EXPECT_TRUE(reclaim(third).empty());
  EXPECT_EQ(pop_all(kSmall), Blocks{freed[2]});
  EXPECT_TRUE(cache_.in_flight.empty());
  EXPECT_EQ(cache_.waiting_bytes(), 0u);
}

TEST_F(ThreadCacheTest, BatchesOfOneEpochAreOneInFlight) {
  Block* const first = block(kSmall);
  cache_.retire(first);
  cache_.flush(ordering_.epochs());
  const EpochNumber epoch = join_epoch({block(kSmall), block(2 * kSmall)});
  const BatchesInFlight::All in_flight = cache_.in_flight.pop_all();
  EXPECT_EQ(in_flight[0].epoch, epoch);
  EXPECT_EQ(in_flight[0].blocks.count(), 3u);
  EXPECT_EQ(in_flight[0].blocks.bytes, 4 * kSmall);
  EXPECT_TRUE(in_flight[1].blocks.empty());
}

// A later fence also covers an older batch; never the other way round.
TEST_F(ThreadCacheTest, WhereTooManyAreInFlightOlderBatchesWaitForALaterFence) {  // I1
  constexpr std::size_t kMost = BatchesInFlight::kMost;
  Blocks freed;
  std::vector<EpochNumber> epochs;
  // From every place of the ring.
  for (std::size_t start = 0; start < kMost; ++start) {
    freed.clear();
    epochs.clear();
    for (std::size_t i = 0; i < kMost + 2; ++i) {
      freed.push_back(block(kSmall));
      epochs.push_back(join_epoch({freed.back()}));
    }
    const std::set<Block*> early = set_of(reclaim(epochs[kMost], all));
    EXPECT_EQ(early, std::set<Block*>(freed.begin(), freed.begin() + kMost - 1));
    EXPECT_EQ(cache_.in_flight.oldest(), epochs.back());
    const std::set<Block*> late = set_of(reclaim(epochs.back(), all));
    EXPECT_EQ(late, std::set<Block*>(freed.begin() + kMost - 1, freed.end()));
    EXPECT_TRUE(cache_.in_flight.empty());
    reclaim(join_epoch({block(kSmall)}), all);
  }
}

TEST_F(ThreadCacheTest, WhatIsUnfitAndWhatHasNoRoomIsSurplus) {
  limit(512, kMuch, kMuch, 3 * kSmall);
  Blocks wanted;
  Blocks unwanted;
  for (int i = 0; i < 5; ++i) wanted.push_back(block(kSmall));
  for (int i = 0; i < 2; ++i) unwanted.push_back(block(kAlignment, false));
  Blocks freed = wanted;
  freed.insert(freed.end(), unwanted.begin(), unwanted.end());
  const auto plain = [](const Block& each) { return each.kind >= 0x80; };
  const std::set<Block*> surplus = set_of(reclaim(join_epoch(freed), plain));
  EXPECT_EQ(surplus.size(), 4u);
  for (Block* each : unwanted) EXPECT_EQ(surplus.count(each), 1u);
  EXPECT_EQ(cache_.tally.reclaimed, 3 * static_cast<std::int64_t>(kSmall))
      << "surplus counts as retired";
  EXPECT_EQ(pop_all(kSmall).size(), 3u);
  EXPECT_EQ(cache_.idle.pop(kAlignment), nullptr);
}

// What a thread only frees, others allocate.
TEST_F(ThreadCacheTest, FreedBlocksOfAClassThatWasNeverRequestedAreSurplus) {
  constexpr std::uint64_t kUnasked = 3 * kSmall;
  const auto free_two = [&](std::uint64_t capacity, bool of_pool = true) {
    return reclaim(join_epoch({block(capacity, of_pool), block(capacity, of_pool)})).count;
  };
  EXPECT_EQ(free_two(kUnasked), 2u);
  EXPECT_EQ(free_two(kUnasked, false), 2u);
  EXPECT_EQ(cache_.tally.reclaimed, 0) << "surplus counts as retired";
  EXPECT_EQ(free_two(2 * kMiB), 0u) << "large blocks have no class";
  EXPECT_EQ(cache_.idle.pop(kUnasked), nullptr);
  EXPECT_EQ(free_two(kUnasked), 0u) << "requested, though not found";
  EXPECT_EQ(free_two(kUnasked, false), 0u);
  cache_.idle.pop_all();
  EXPECT_EQ(free_two(kUnasked), 2u) << "forgotten with the blocks";
}

TEST_F(ThreadCacheTest, ADrainOfWhatIsInFlightLeavesTheRest) {
  const Blocks freed{block(kSmall), block(kSmall), block(2 * kMiB)};
  const EpochNumber first = join_epoch({freed[0]});
  const EpochNumber second = join_epoch({freed[1], freed[2]});
  cache(1, kSmall);
  cache_.retire(block(kSmall));
  BatchesInFlight::All drained = cache_.in_flight.pop_all();
  std::vector<EpochNumber> epochs;
  std::set<Block*> blocks;
  for (BatchesInFlight::Batch& each : drained) {
    if (each.blocks.empty()) continue;
    epochs.push_back(each.epoch);
    const std::set<Block*> of_epoch = set_of(each.blocks.pop_all());
    EXPECT_EQ(of_epoch.count(freed[0]), each.epoch == first ? 1u : 0u) << "each in its own epoch";
    blocks.insert(of_epoch.begin(), of_epoch.end());
  }
  EXPECT_EQ(epochs, (std::vector<EpochNumber>{first, second}));
  EXPECT_EQ(blocks, std::set<Block*>(freed.begin(), freed.end()));
  EXPECT_TRUE(cache_.in_flight.empty());
  EXPECT_TRUE(reclaim(second).empty()) << "they are somebody else's";
  EXPECT_EQ(cache_.waiting_bytes(), kSmall) << "the batch";
  EXPECT_EQ(pop_all(kSmall).size(), 1u) << "and the cached one";
}

TEST_F(ThreadCacheTest, ADrainOfCachedBlocksPopsThemAll) {
  reclaim(join_epoch({block(kSmall), block(2 * kSmall), block(8 * kMiB)}));
  cache(2, kSmall);
  cache(2, 2 * kMiB);
  cache_.retire(block(kSmall));
  const BlockList drained = cache_.idle.pop_all();
  EXPECT_EQ(all_of(drained).size(), 7u);
  EXPECT_EQ(drained.bytes, 5 * kSmall + 12 * kMiB);
  for (const Block* each : all_of(drained)) EXPECT_EQ(each->state.load(), BlockState::cached);
  for (const std::uint64_t capacity : {kSmall, 2 * kSmall, 2 * kMiB, 8 * kMiB}) {
    EXPECT_EQ(cache_.idle.pop(capacity), nullptr);
  }
  EXPECT_EQ(cache_.waiting_bytes(), kSmall);
  limit(512, kMuch, kMuch, 2 * kSmall);
  EXPECT_EQ(cache(3, kSmall).count, 1u) << "its bytes are room again";
}

TEST_F(ThreadCacheTest, OfAContextThatIsGoneNothingIsLeft) {
  const EpochNumber epoch = join_epoch({block(kSmall)});
  cache(1, kSmall);
  cache(1, 2 * kMiB);
  cache_.retire(block(kSmall));
  const BatchNumber number = cache_.batch.number();
  cache_.abandon();
  EXPECT_EQ(cache_.waiting_bytes(), 0u);
  EXPECT_TRUE(cache_.in_flight.empty());
  EXPECT_FALSE(cache_.batch.is_filling(number));
  EXPECT_TRUE(reclaim(epoch).empty());
  EXPECT_EQ(cache_.idle.pop(kSmall), nullptr);
  EXPECT_EQ(cache_.idle.pop(2 * kMiB), nullptr);
  cache_.flush(ordering_.epochs());
  EXPECT_TRUE(cache_.in_flight.empty());
}

TEST_F(ThreadCacheTest, WhatWaitsIsBoundedInBlocksAndInBytes) {
  limit(10, 100 * kSmall, kMuch, kMuch);
  EXPECT_FALSE(cache_.waits_for(1, 100 * kSmall));
  EXPECT_TRUE(cache_.waits_for(1, 100 * kSmall + 1)) << "with that many bytes more it would";
  EXPECT_FALSE(cache_.waits_for(2, 100 * kSmall + 1));
  for (int i = 0; i < 9; ++i) cache_.retire(block(kSmall));
  EXPECT_FALSE(cache_.waits_for(1, 91 * kSmall));
  EXPECT_TRUE(cache_.waits_for(1, 91 * kSmall + 1));
  cache_.flush(ordering_.epochs());
  cache_.retire(block(kSmall));
  EXPECT_TRUE(cache_.waits_for(1, 0)) << "nine in flight and one in the batch";
  EXPECT_FALSE(cache_.waits_for(2, 0));
}

TEST_F(ThreadCacheTest, AThreadThatDidNothingSinceTheLastLookLiesIdle) {
  EXPECT_FALSE(cache_.lies_idle()) << "it holds nothing";
  cache(2, kSmall);
  EXPECT_NE(cache_.pop_hot(kSmall), nullptr);
  EXPECT_FALSE(cache_.lies_idle());
  EXPECT_TRUE(cache_.lies_idle());
  cache_.tally.fold(life_.stats);
  EXPECT_TRUE(cache_.lies_idle()) << "to be told is to do nothing";
  EXPECT_TRUE(cache_.retire_hot(block(kSmall)));
  EXPECT_FALSE(cache_.lies_idle());
  cache_.idle.pop_all();
  EXPECT_TRUE(cache_.lies_idle()) << "its batch";
}

TEST_F(ThreadCacheTest, RefillsDoubleUpToAChain) {
  for (const std::size_t expected : {2u, 4u, 8u, 16u, 32u, 64u, 128u, 128u}) {
    EXPECT_EQ(cache_.idle.refill(), expected);
  }
}

}  // namespace
}  // namespace cupool::engine
