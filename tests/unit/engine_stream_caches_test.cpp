// SPDX-License-Identifier: Apache-2.0
// The caches of streams by themselves: whose a freed block is, streams that end, the limit, decay
// (contract 12, I1).
#include "engine/async/stream_caches.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace cupool::engine {
namespace {

constexpr std::uint64_t kMib = 1 << 20;

class StreamCachesTest : public testing::Test {
 protected:
  using Place = StreamCaches::Place;

  StreamCachesTest() { caches_.set_limit(64 * kMib); }

  // Never looked into.
  const Context* context(std::uintptr_t number) const {
    return reinterpret_cast<const Context*>(number);
  }
  CUstream stream(std::uintptr_t number) const { return reinterpret_cast<CUstream>(number << 8); }
  Place place(std::uintptr_t of_stream, std::uintptr_t of_context = 1) {
    return caches_.find_or_add({context(of_context), 1, stream(of_stream)}, stats::device(0));
  }

  Block& block(std::uint64_t bytes) {
    blocks_.push_back(std::make_unique<Block>());
    Block& made = *blocks_.back();
    made.address = 0x10000000 * blocks_.size();
    made.capacity = stream_capacity_for(bytes);
    made.state.store(BlockState::freed);
    return made;
  }
  // Frees a new block while epoch `open` is open.
  CUdeviceptr push(const Place& to, std::uint64_t bytes, std::uint64_t open = 1) {
    Block& made = block(bytes);
    EXPECT_TRUE(caches_.allot(to, made.capacity));
    EXPECT_EQ(to.cache->push(to.use, made, EpochNumber{open}), StreamCache::Taken::yes);
    return made.address;
  }
  static CUdeviceptr pop(const Place& from, std::uint64_t bytes) {
    return from.cache->pop(from.use, stream_capacity_for(bytes), bytes);
  }
  CUdeviceptr pop_complete(std::uint64_t bytes, std::uint64_t complete, bool* pending,
                           std::uintptr_t of_context = 1) {
    return caches_.pop_complete(context(of_context), 1, stream_capacity_for(bytes), bytes,
                                EpochNumber{complete}, pending);
  }

  std::vector<std::unique_ptr<Block>> blocks_;
  StreamCaches caches_;
};

TEST_F(StreamCachesTest, SizesWasteAnEighthAtMost) {
  for (std::uint64_t bytes = 1; bytes < 100 * kMib; bytes += 1 + bytes / 37) {
    const std::uint64_t capacity = stream_capacity_for(bytes);
    ASSERT_GE(capacity, bytes);
    ASSERT_EQ(capacity % kAlignment, 0u);
    ASSERT_TRUE(capacity - bytes < kAlignment || capacity - bytes <= bytes / 8) << bytes;
    ASSERT_LE(capacity - bytes, kLargeUnit);
    ASSERT_LT(stream_class(capacity) + 1, kStreamClasses);
  }
  EXPECT_LT(stream_class(kLargestStreamBlock) + 1, kStreamClasses);
}

// Of what the driver would use: its own memory comes in units of kAlignment.
TEST_F(StreamCachesTest, ABlockWastesAnEighthAtMost) {
  std::uintptr_t streams = 0;
  for (const std::uint64_t bytes : {1ull, 4097ull, 4200ull, 4600ull, 70'000ull, 1'100'000ull}) {
    for (std::uint64_t other = bytes; other < 2 * bytes + 2 * kAlignment; other += kAlignment) {
      const Place mine = place(++streams % 100 + 1);
      push(mine, other);
      const std::uint64_t capacity = blocks_.back()->capacity;
      const bool fits = capacity - bytes < kAlignment || capacity - bytes <= bytes / 8;
      EXPECT_EQ(pop(mine, bytes) != 0, fits) << capacity << " for " << bytes;
      caches_.context_ends(context(1));
    }
  }
}

TEST_F(StreamCachesTest, ABlockIsTheStreamsThatFreedIt) {  // I1
  const Place one = place(1);
  const Place other = place(2);
  const CUdeviceptr address = push(one, 4000);
  EXPECT_EQ(pop(other, 4000), 0u);
  EXPECT_EQ(pop(one, 8000), 0u);
  EXPECT_EQ(pop(one, 3900), address);
  EXPECT_EQ(blocks_[0]->requested, 3900u);
  EXPECT_EQ(blocks_[0]->state.load(), BlockState::live);
  EXPECT_EQ(pop(one, 3900), 0u);
}

TEST_F(StreamCachesTest, ItIsAnotherStreamsOnceItsEpochIsComplete) {  // I1
  const CUdeviceptr address = push(place(1), kMib, 7);
  bool pending = false;
  EXPECT_EQ(pop_complete(2 * kMib, 6, &pending), 0u);
  EXPECT_FALSE(pending) << "none that fits";
  EXPECT_EQ(pop_complete(kMib, 6, &pending), 0u);
  EXPECT_TRUE(pending);
  EXPECT_EQ(pop_complete(kMib, 7, &pending, 2), 0u) << "of another context";
  EXPECT_EQ(caches_.pop_complete(context(1), 2, kMib, kMib, EpochNumber{7}, &pending), 0u)
      << "of the context's next life";
  EXPECT_EQ(pop_complete(kMib, 7, &pending), address);
}

// A class of large blocks has blocks of several sizes.
TEST_F(StreamCachesTest, ASearchLooksAtFewBlocksOfAClass) {
  constexpr unsigned kLooks = 8;
  caches_.set_limit(1024 * kMib);
  for (const unsigned smaller : {kLooks - 1, kLooks}) {
    const Place mine = place(1);
    const CUdeviceptr oldest = push(mine, 38 * kMib);
    for (unsigned i = 0; i < smaller; ++i) push(mine, 36 * kMib);
    ASSERT_EQ(stream_class(38 * kMib), stream_class(36 * kMib));
    EXPECT_EQ(pop(mine, 38 * kMib), smaller < kLooks ? oldest : 0u);
    bool pending = false;
    caches_.context_ends(context(1));
    const Place again = place(1);
    for (unsigned i = 0; i < smaller; ++i) push(again, 36 * kMib);
    const CUdeviceptr newest = push(again, 38 * kMib);
    EXPECT_EQ(pop_complete(38 * kMib, 9, &pending), smaller < kLooks ? newest : 0u);
    caches_.context_ends(context(1));
  }
}

// Also if a larger one that fits was freed later: it may be wanted next.
TEST_F(StreamCachesTest, ABlockOfTheVerySizeComesFirst) {
  caches_.set_limit(1024 * kMib);
  const Place mine = place(1);
  const CUdeviceptr smaller = push(mine, 64 * kMib);
  const CUdeviceptr larger = push(mine, 72 * kMib);
  EXPECT_EQ(pop(mine, 64 * kMib), smaller);
  EXPECT_EQ(pop(mine, 72 * kMib), larger);
}

TEST_F(StreamCachesTest, AStreamIsOneOfItsContext) {
  const Place mine = place(1, 1);
  EXPECT_EQ(place(1, 1).cache, mine.cache);
  EXPECT_NE(place(2, 1).cache, mine.cache);
  EXPECT_NE(place(1, 2).cache, mine.cache);
  EXPECT_NE(caches_.find_or_add({context(1), 2, stream(1)}, stats::device(0)).cache, mine.cache)
      << "in its next life";
}

TEST_F(StreamCachesTest, AStreamThatComesAgainIsAnotherOne) {  // I1
  const Place before = place(1);
  const CUdeviceptr address = push(before, kMib, 3);
  const Place second = place(2);
  const CUdeviceptr later = push(second, kMib, 4);
  caches_.stream_ends(stream(1));
  caches_.stream_ends(stream(2));
  EXPECT_EQ(pop(before, kMib), 0u);
  EXPECT_EQ(pop(second, kMib), 0u);
  EXPECT_EQ(before.cache->push(before.use, block(kMib), EpochNumber{5}), StreamCache::Taken::gone);
  const Place again = place(1);
  EXPECT_EQ(pop(again, kMib), 0u);
  bool pending = false;
  EXPECT_EQ(pop_complete(kMib, 2, &pending), 0u);
  EXPECT_TRUE(pending);
  EXPECT_EQ(pop_complete(kMib, 3, &pending), address);
  EXPECT_EQ(pop_complete(kMib, 4, &pending), later);
}

TEST_F(StreamCachesTest, WhatAStreamHadThatWasDoneIsAnyStreamsAtOnce) {  // I1
  const auto done = [](CUstream) { return CUDA_SUCCESS; };
  const auto busy = [](CUstream) { return CUDA_ERROR_NOT_READY; };
  bool pending = false;
  push(place(1), kMib, 3);
  caches_.stream_ends(stream(1), busy);
  EXPECT_EQ(pop_complete(kMib, 2, &pending), 0u);
  EXPECT_TRUE(pending);
  // The first such stream, and others after it; those that were busy stay apart.
  std::vector<CUdeviceptr> addresses;
  for (std::uintptr_t number = 2; number != 5; ++number) {
    const Place ended = place(number);
    addresses.push_back(push(ended, kMib, 4));
    caches_.stream_ends(stream(number), done);
    EXPECT_EQ(pop(ended, kMib), 0u);
  }
  EXPECT_EQ(pop_complete(kMib, 2, &pending), addresses[0]);
  EXPECT_EQ(pop_complete(kMib, 2, &pending), addresses[1]);
  const BlockList taken = caches_.take(context(1), kNoEpoch, StreamCaches::Which::all, ~0ull);
  EXPECT_EQ(taken.count, 1u);
  EXPECT_EQ(caches_.idle().bytes, kMib);
}

// A fence of that epoch covers all that is idle, also what streams that are gone have freed.
TEST_F(StreamCachesTest, TheNewestFreeOfAContextIsKnown) {
  const auto newest = [this](std::uintptr_t number) {
    return caches_.idle(context(number)).freed_up_to;
  };
  EXPECT_EQ(newest(1), kNoEpoch);
  push(place(1), kMib, 3);
  push(place(1, 2), kMib, 9);
  EXPECT_EQ(newest(1), EpochNumber{3});
  caches_.stream_ends(stream(1));
  const Place second = place(2);
  push(second, kMib, 5);
  caches_.stream_ends(stream(2));
  EXPECT_EQ(newest(1), EpochNumber{5}) << "its blocks are in the first one's place";
  EXPECT_EQ(newest(2), EpochNumber{9});
  caches_.context_ends(context(2));
  push(place(3), kMib, 6);
  EXPECT_EQ(newest(1), EpochNumber{6}) << "not the epoch of the place's last context";
}

// Only then its answer is one for all that it has freed.
TEST_F(StreamCachesTest, AStreamIsAskedOnceItHasLostItsCache) {  // I1
  static CUstream ending = nullptr;
  static Place mine;
  static Block* late = nullptr;
  ending = stream(1);
  mine = place(1);
  late = &block(kMib);
  push(mine, kMib);
  push(mine, kMib);
  EXPECT_NE(pop(mine, kMib), 0u);
  caches_.stream_ends(ending, [](CUstream asked) {
    EXPECT_EQ(asked, ending);
    EXPECT_EQ(mine.cache->push(mine.use, *late, EpochNumber{1}), StreamCache::Taken::gone);
    EXPECT_EQ(pop(mine, kMib), 0u);
    return CUDA_SUCCESS;
  });
  EXPECT_EQ(caches_.idle().bytes, kMib);
}

TEST_F(StreamCachesTest, NoStreamIsAskedThatHasNothingOrIsGone) {
  static int asked = 0;
  asked = 0;
  const auto count = [](CUstream) {
    ++asked;
    return CUDA_SUCCESS;
  };
  place(1);
  caches_.stream_ends(stream(1), count);
  EXPECT_EQ(asked, 0);
  push(place(2), kMib);
  caches_.stream_ends(stream(2), count);
  EXPECT_EQ(asked, 1);
  push(place(3), kMib, 9);
  caches_.stream_ends(stream(3));
  caches_.take(context(1), EpochNumber{9}, StreamCaches::Which::unneeded, ~0ull, count);
  EXPECT_EQ(asked, 1);
}

// The oldest first: a search, decay and a fence begin there.
TEST_F(StreamCachesTest, TheBlocksOfAnEndedStreamKeepTheirOrder) {
  bool pending = false;
  std::vector<CUdeviceptr> addresses;
  for (std::uintptr_t number = 1; number != 3; ++number) {
    for (std::uint64_t open = 1; open != 4; ++open) {
      addresses.push_back(push(place(number), kMib, 3 * number + open));
    }
    caches_.stream_ends(stream(number));
  }
  for (const CUdeviceptr address : addresses) {
    EXPECT_EQ(pop_complete(kMib, 9, &pending), address);
  }
}

TEST_F(StreamCachesTest, AContextEndsWithItsStreams) {
  const Place mine = place(1);
  push(mine, kMib);
  push(place(2), kMib);
  push(place(3, 2), kMib);
  caches_.stream_ends(stream(2));
  EXPECT_EQ(caches_.context_ends(context(1)).count, 2u);
  EXPECT_EQ(pop(mine, kMib), 0u);
  EXPECT_EQ(caches_.idle().bytes, kMib);
  EXPECT_EQ(caches_.idle(context(1)).bytes, 0u);
  EXPECT_EQ(caches_.idle(context(2)).bytes, kMib);
}

TEST_F(StreamCachesTest, TheLimitHoldsForAllStreams) {
  const Place one = place(1);
  const Place other = place(2);
  for (int i = 0; i < 3; ++i) push(one, 16 * kMib);
  EXPECT_FALSE(caches_.allot(other, 32 * kMib));
  EXPECT_NE(pop(one, 16 * kMib), 0u);
  EXPECT_TRUE(caches_.allot(other, 32 * kMib)) << "what one does not use";
  EXPECT_EQ(one.cache->push(one.use, block(16 * kMib), EpochNumber{1}), StreamCache::Taken::full);
}

TEST_F(StreamCachesTest, ABlockBeyondTheWholeLimitGetsNoRoom) {
  const Place mine = place(1);
  EXPECT_FALSE(caches_.allot(mine, 64 * kMib + kAlignment));
  EXPECT_FALSE(caches_.allot(mine, ~0ull)) << "no sum overflows";
  EXPECT_TRUE(caches_.allot(mine, 64 * kMib));
}

TEST_F(StreamCachesTest, AStreamThatHasEndedTakesNoPartOfTheLimit) {
  const Place before = place(1);
  caches_.stream_ends(stream(1));
  EXPECT_FALSE(caches_.allot(before, 64 * kMib));
  const Place mine = place(2);
  ASSERT_TRUE(caches_.allot(mine, 64 * kMib));
  EXPECT_EQ(mine.cache->push(mine.use, block(64 * kMib), EpochNumber{1}), StreamCache::Taken::yes);
}

TEST_F(StreamCachesTest, TakesWhatIsCompleteOrWasIdleLong) {
  const Place mine = place(1);
  push(mine, kMib, 1);
  for (std::uint32_t step = 0; step < StreamCaches::kDecaySteps; ++step) caches_.end_decay_step();
  push(mine, 2 * kMib, 2);
  push(mine, 4 * kMib, 3);
  using Which = StreamCaches::Which;
  EXPECT_EQ(caches_.take(context(1), EpochNumber{0}, Which::unneeded, ~0ull).count, 0u);
  EXPECT_EQ(caches_.take(context(1), EpochNumber{9}, Which::unneeded, ~0ull).bytes, kMib);
  BlockList complete = caches_.take(context(1), EpochNumber{2}, Which::all, ~0ull);
  EXPECT_EQ(complete.bytes, 2 * kMib);
  caches_.put_back(context(1), 1, stats::device(0), complete);
  bool pending = false;
  EXPECT_NE(pop_complete(2 * kMib, 2, &pending), 0u) << "the driver refused it";
}

TEST_F(StreamCachesTest, TakesNoMoreThanIsWantedAndOnlyOfTheContext) {
  for (const std::uintptr_t of_stream : {1, 2}) {
    for (int i = 0; i < 2; ++i) push(place(of_stream), kMib);
  }
  push(place(1, 2), kMib);
  const auto take = [&](std::uint64_t most) {
    return caches_.take(context(1), EpochNumber{1}, StreamCaches::Which::all, most).count;
  };
  EXPECT_EQ(take(kMib), 1u);
  EXPECT_EQ(take(kMib + 1), 2u) << "up to the one that reaches it";
  EXPECT_EQ(take(~0ull), 1u);
  EXPECT_EQ(caches_.idle(context(2)).bytes, kMib);
}

TEST_F(StreamCachesTest, TakesOneBlockOutOfWhateverStreamHasIt) {
  const CUdeviceptr oldest = push(place(1), kMib);
  Block& taken = *blocks_.back();
  const CUdeviceptr newest = push(place(1), kMib);
  const CUdeviceptr others = push(place(2), kMib);
  const std::uint64_t word = taken.state.word();
  EXPECT_FALSE(caches_.take(taken, word + 4)) << "it was looked up in another life of its record";
  EXPECT_TRUE(caches_.take(taken, word));
  EXPECT_FALSE(caches_.take(taken, word)) << "it is in none any more";
  EXPECT_NE(oldest, newest);
  EXPECT_EQ(pop(place(1), kMib), newest);
  EXPECT_EQ(pop(place(1), kMib), 0u);
  EXPECT_EQ(pop(place(2), kMib), others);
}

TEST_F(StreamCachesTest, AnUnusedCacheEnds) {
  const Place mine = place(1);
  push(mine, kMib);
  EXPECT_NE(pop(mine, kMib), 0u);
  for (std::uint32_t step = 0; step < StreamCaches::kDecaySteps; ++step) caches_.end_decay_step();
  EXPECT_EQ(mine.cache->push(mine.use, block(kMib), EpochNumber{1}), StreamCache::Taken::gone);
  EXPECT_EQ(place(2).cache, mine.cache) << "for the next stream";
}

TEST_F(StreamCachesTest, SomeStreamsHaveNone) {
  for (std::uintptr_t number = 1; number <= StreamCaches::kMostStreams; ++number) {
    EXPECT_NE(place(number).cache, nullptr);
  }
  EXPECT_EQ(place(StreamCaches::kMostStreams + 1).cache, nullptr);
  caches_.stream_ends(stream(1));
  caches_.stream_ends(stream(2));
  EXPECT_NE(place(StreamCaches::kMostStreams + 1).cache, nullptr) << "of those that are gone";
}

// Contract 4: what goes back without a stream of its own is not lost where all streams have caches.
TEST_F(StreamCachesTest, AStreamGivesItsCacheUpForBlocksOfNoStream) {
  for (std::uintptr_t number = 1; number <= StreamCaches::kMostStreams; ++number) {
    ASSERT_NE(place(number).cache, nullptr);
  }
  BlockList of_another_context;
  of_another_context.push(&block(kMib));
  caches_.put_back(context(2), 1, stats::device(0), of_another_context);
  EXPECT_EQ(of_another_context.count, 1u) << "the driver keeps the memory";
  EXPECT_EQ(caches_.idle().bytes, 0u);
  BlockList blocks;
  blocks.push(&block(kMib));
  caches_.put_back(context(1), 1, stats::device(0), blocks);
  EXPECT_TRUE(blocks.empty());
  EXPECT_EQ(caches_.idle().bytes, kMib);
  EXPECT_EQ(place(StreamCaches::kMostStreams + 1).cache, nullptr);
  bool pending = false;
  EXPECT_NE(pop_complete(kMib, 0, &pending), 0u) << "any stream's";
}

}  // namespace
}  // namespace cupool::engine
