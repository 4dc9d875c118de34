// SPDX-License-Identifier: Apache-2.0
// The pointer map alone: what it finds, what it lets go, who gets a block that several threads
// free, and that a reader beside a writer misses nothing.
#include "engine/block/pointer_map.h"
#include "engine/serve/retire.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <fstream>
#include <set>
#include <thread>
#include <vector>

#include "engine/context/context.h"
#include "engine_fake_driver.h"
#include "util/clock.h"

namespace cupool::engine {
namespace {

class PointerMapTest : public testing::Test {
 protected:
  using Claim = PointerMap::Claim;
  static constexpr CUdeviceptr kFirstAddress = CUdeviceptr{1} << 40;
  static constexpr std::uint64_t kBytes = 4096;

  // Contexts without pools, threads or events: they may be destroyed.
  struct Life {
    cuda::Driver driver = test::fake_driver();
    config::Settings settings = config::parse(nullptr, nullptr, nullptr);
    Device device{driver, 0, settings};
    Context first{driver, test::fake::context(), device};
    Context second{driver, reinterpret_cast<CUcontext>(~std::uintptr_t{0}), device};
  };

  Block* block(CUdeviceptr address, Context& context) {
    Block& made = blocks_.emplace_back();
    made.address = address;
    made.capacity = kBytes;
    made.context = &context;
    made.source = BlockSource::pool;
    return &made;  // live, as a new one
  }
  Block* block(CUdeviceptr address) { return block(address, life_.first); }
  static CUdeviceptr address_of(std::size_t index) { return kFirstAddress + index * kBytes; }
  // Blocks one behind the other, as a pool gives them.
  std::vector<Block*> insert_several(std::size_t count) {
    std::vector<Block*> made;
    for (std::size_t i = 0; i < count; ++i) {
      made.push_back(block(address_of(i)));
      EXPECT_EQ(add_block(map_, made.back()), nullptr);
    }
    return made;
  }
  std::multiset<const Block*> visited() const {
    std::multiset<const Block*> found;
    map_.for_each([&](const Block& each) { found.insert(&each); });
    return found;
  }
  std::vector<Block*> extract_of(const Context& context) {
    LeftBlocks left = map_.extract([&](const Block& each) { return each.context == &context; });
    std::vector<Block*> extracted;
    while (Block* const each = left.pop()) extracted.push_back(each);
    return extracted;
  }

  static std::uint64_t resident_bytes() {
    constexpr std::uint64_t kPage = 4096;
    std::ifstream statm("/proc/self/statm");
    std::uint64_t all = 0;
    std::uint64_t resident = 0;
    statm >> all >> resident;
    return resident * kPage;
  }

  Life life_;
  Context& context_ = life_.first;
  Context& other_context_ = life_.second;
  std::deque<Block> blocks_;
  PointerMap map_;
};

TEST_F(PointerMapTest, FindsWhatWasInsertedUntilItIsErased) {
  const std::vector<Block*> blocks = insert_several(5000);
  for (const Block* each : blocks) EXPECT_EQ(map_.find(each->address), each);
  EXPECT_TRUE(map_.erase(blocks[7]));
  EXPECT_FALSE(map_.erase(blocks[7])) << "it was not there any more";
  EXPECT_EQ(map_.find(blocks[7]->address), nullptr);
  EXPECT_EQ(map_.find_at_once(blocks[7]->address), nullptr);
  std::multiset<const Block*> expected(blocks.begin(), blocks.end());
  expected.erase(blocks[7]);
  EXPECT_EQ(visited(), expected) << "each of the others once";
  EXPECT_EQ(add_block(map_, blocks[7]), nullptr) << "nobody stands there";
  EXPECT_EQ(map_.find(blocks[7]->address), blocks[7]);
}

TEST_F(PointerMapTest, AnAddressInsideABlockIsNoBlocks) {
  insert_several(100);
  for (std::size_t i = 0; i < 100; ++i) {
    for (const std::uint64_t offset : {std::uint64_t{1}, std::uint64_t{256}, kAlignment, kBytes / 2,
                                       kBytes - kAlignment, kBytes - 1}) {
      EXPECT_EQ(map_.find(address_of(i) + offset), nullptr) << offset;
      EXPECT_EQ(map_.find_at_once(address_of(i) + offset), nullptr) << offset;
    }
  }
  EXPECT_EQ(map_.find(address_of(0) - kAlignment), nullptr);
  EXPECT_EQ(map_.find(address_of(100)), nullptr);
  EXPECT_EQ(map_.find(0), nullptr) << "a free of null is nobody's block";
  EXPECT_EQ(map_.find_at_once(0), nullptr);
}

// One look may be too few, but never gives a block that is not there.
TEST_F(PointerMapTest, OneLookFindsTheBlockItselfOrNothing) {
  const std::vector<Block*> blocks = insert_several(10'000);
  std::size_t at_once = 0;
  for (const Block* each : blocks) {
    const Block* found = map_.find_at_once(each->address);
    EXPECT_TRUE(found == nullptr || found == each);
    at_once += found != nullptr ? 1 : 0;
  }
  EXPECT_GT(at_once, blocks.size() / 2) << "else most frees leave the hot path";
}

// Addresses within 512 bytes of each other begin at the same slot.
TEST_F(PointerMapTest, BlocksThatShareASlotStayFoundWhenOneOfThemGoes) {
  std::vector<Block*> sharing;
  for (CUdeviceptr offset = 0; offset < kAlignment; offset += 64) {
    sharing.push_back(block(kFirstAddress + offset));
    EXPECT_EQ(add_block(map_, sharing.back()), nullptr);
  }
  for (std::size_t gone = 0; gone < sharing.size(); ++gone) {
    EXPECT_TRUE(map_.erase(sharing[gone]));
    for (std::size_t i = 0; i < sharing.size(); ++i) {
      EXPECT_EQ(map_.find(sharing[i]->address), i == gone ? nullptr : sharing[i]);
    }
    EXPECT_EQ(add_block(map_, sharing[gone]), nullptr);
  }
  EXPECT_EQ(visited(), std::multiset<const Block*>(sharing.begin(), sharing.end()));
}

// Through many replacements of its table, some by one that was used before.
TEST_F(PointerMapTest, ATableThatIsUsedAgainHoldsNothingOfItsFormerLife) {
  constexpr std::size_t kLive = 50;
  constexpr std::size_t kAddresses = 20'000;
  std::vector<Block*> blocks;
  for (std::size_t i = 0; i < kAddresses; ++i) {
    blocks.push_back(block(address_of(i)));
    EXPECT_EQ(add_block(map_, blocks.back()), nullptr);
    EXPECT_EQ(i >= kLive && map_.erase(blocks[i - std::min(i, kLive)]), i >= kLive);
    if (i % 1000 != 999) continue;
    for (std::size_t j = 0; j <= i; ++j) {
      ASSERT_EQ(map_.find(address_of(j)), j + kLive > i ? blocks[j] : nullptr) << j << " of " << i;
    }
    EXPECT_EQ(visited().size(), kLive);
  }
}

// A program that goes through addresses for days has a table for the blocks that it has at a time.
TEST_F(PointerMapTest, AddressesThatChangeDoNotMakeItGrow) {
  constexpr std::size_t kAddresses = 300'000;
  constexpr std::uint64_t kMost = 6ull << 20;  // a table of all of them has 16 MiB
  const std::vector<Block*> blocks = insert_several(10);
  const std::uint64_t before = resident_bytes();
  for (std::size_t i = 0; i < kAddresses; ++i) {
    Block* const reused = blocks[i % blocks.size()];
    ASSERT_TRUE(map_.erase(reused));
    reused->address = address_of(blocks.size() + i);
    ASSERT_EQ(add_block(map_, reused), nullptr);
  }
  EXPECT_LT(resident_bytes(), before + kMost);
  EXPECT_EQ(visited(), std::multiset<const Block*>(blocks.begin(), blocks.end()));
}

TEST_F(PointerMapTest, ASecondBlockAtAnAddressReplacesTheFirst) {
  Block* const first = block(kFirstAddress);
  Block* const second = block(kFirstAddress);
  EXPECT_EQ(add_block(map_, first), nullptr);
  EXPECT_EQ(add_block(map_, second), first) << "freed behind our back: its counts are the caller's";
  EXPECT_FALSE(map_.erase(first)) << "only the block that stands there may be taken out";
  EXPECT_EQ(map_.find(kFirstAddress), second);
  EXPECT_EQ(visited(), std::multiset<const Block*>{second});
  EXPECT_TRUE(extract_of(other_context_).empty());
  EXPECT_EQ(extract_of(context_), std::vector<Block*>{second}) << "the first is not the map's";
}

// Who looked a record up before it was reused takes only what stood there then.
TEST_F(PointerMapTest, ARecordOfAnotherAddressIsNotTakenOut) {
  Block* const reused = block(kFirstAddress);
  add_block(map_, reused);
  EXPECT_TRUE(map_.erase(reused, kFirstAddress));
  reused->address = address_of(1);
  add_block(map_, reused);
  EXPECT_FALSE(map_.erase(reused, kFirstAddress));
  EXPECT_EQ(map_.find(address_of(1)), reused);
}

// The pool has its memory already, and gives it out before its thread has taken it out of the map.
TEST_F(PointerMapTest, ALeavingBlockIsItsThreadsAlone) {
  Block* const leaving = block(kFirstAddress);
  add_block(map_, leaving);
  leaving->state.store(BlockState::leaving);
  Block* const next = block(kFirstAddress);
  EXPECT_EQ(add_block(map_, next), nullptr);
  EXPECT_EQ(map_.find(kFirstAddress), next);
  EXPECT_FALSE(map_.erase(leaving));
  EXPECT_EQ(map_.find(kFirstAddress), next);
  EXPECT_EQ(extract_of(context_), std::vector<Block*>{next});
}

// What a context had is counted with its end, also where the driver has handed out its addresses
// before that is noted.
TEST_F(PointerMapTest, WhatIsReplacedWhileItsContextEndsIsExtractedWithIt) {
  const std::vector<Block*> blocks = insert_several(3);
  Block* const next = block(address_of(1), other_context_);
  {
    const ContextEnd ending(context_);
    EXPECT_EQ(add_block(map_, next), nullptr);
    EXPECT_EQ(map_.find(address_of(1)), next);
    EXPECT_EQ(extract_of(other_context_), std::vector<Block*>{next});
    EXPECT_EQ(add_block(map_, next), nullptr);
    std::vector<Block*> of_ended = extract_of(context_);
    std::sort(of_ended.begin(), of_ended.end());
    std::vector<Block*> expected = blocks;
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(of_ended, expected) << "the replaced one too, and each once";
  }
  EXPECT_TRUE(extract_of(context_).empty());
  EXPECT_EQ(map_.find(address_of(0)), nullptr);
  EXPECT_EQ(map_.find(address_of(1)), next);
}

TEST_F(PointerMapTest, WhatAContextThatIsGoneHadIsNobodysWhenItIsReplaced) {
  Block* const old_block = block(kFirstAddress);
  add_block(map_, old_block);
  context_.set_gone();
  Block* const next = block(kFirstAddress, other_context_);
  EXPECT_EQ(add_block(map_, next), nullptr);
  EXPECT_EQ(extract_of(context_), std::vector<Block*>{old_block});
}

TEST_F(PointerMapTest, ExtractTakesWhatBelongsAndLeavesTheRest) {
  const std::vector<Block*> blocks = insert_several(1000);
  for (std::size_t i = 0; i < blocks.size(); i += 3) blocks[i]->context = &other_context_;
  const std::vector<Block*> extracted = extract_of(other_context_);
  EXPECT_EQ(extracted.size(), 334u);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const bool taken = i % 3 == 0;
    EXPECT_EQ(map_.find(blocks[i]->address), taken ? nullptr : blocks[i]);
    EXPECT_EQ(std::count(extracted.begin(), extracted.end(), blocks[i]), taken ? 1 : 0);
  }
  EXPECT_FALSE(map_.erase(blocks[0]));
  EXPECT_EQ(visited().size(), 666u);
}

TEST_F(PointerMapTest, ALiveBlockIsClaimedOnce) {  // contract 3
  Block* const live = block(kFirstAddress);
  add_block(map_, live);
  ClaimedBlock claimed;
  EXPECT_EQ(claim_block(map_, kFirstAddress, &claimed), Claim::claimed);
  EXPECT_EQ(claimed.block, live);
  EXPECT_EQ(live->state.load(), BlockState::freed);
  for (const BlockState state : {BlockState::freed, BlockState::cached, BlockState::leaving}) {
    live->state.store(state);
    EXPECT_EQ(claim_block(map_, kFirstAddress, &claimed), Claim::not_live) << "a double free";
    EXPECT_EQ(live->state.load(), state);
  }
  live->state.begin_new_life();
  EXPECT_EQ(claim_block(map_, kFirstAddress, &claimed), Claim::not_live) << "not its owner's yet";
  live->state.store(BlockState::live);
  EXPECT_EQ(claim_block(map_, kFirstAddress, &claimed), Claim::claimed) << "in its next life";
}

TEST_F(PointerMapTest, WhatIsNotOursIsMissing) {  // contract 3
  ClaimedBlock claimed;
  EXPECT_EQ(claim_block(map_, kFirstAddress, &claimed), Claim::missing);
  Block* const passed = block(kFirstAddress);
  passed->source = BlockSource::passed_through;
  add_block(map_, passed);
  EXPECT_EQ(claim_block(map_, kFirstAddress, &claimed), Claim::missing)
      << "its free is the driver's";
  EXPECT_EQ(claim_block(map_, kFirstAddress + kAlignment, &claimed), Claim::missing) << "inside";
  EXPECT_EQ(claimed.block, nullptr);
  EXPECT_EQ(passed->state.load(), BlockState::live);
  EXPECT_EQ(claim_block(map_, 0, &claimed), Claim::missing);
}

TEST_F(PointerMapTest, InAContextOfNoUseNothingIsClaimed) {  // I7
  Block* const live = block(kFirstAddress);
  add_block(map_, live);
  ClaimedBlock claimed;
  context_.set_poisoned();
  EXPECT_EQ(claim_block(map_, kFirstAddress, &claimed), Claim::unusable);
  EXPECT_EQ(claimed.block, live) << "the caller is told which block it would be";
  EXPECT_EQ(live->state.load(), BlockState::live);
  context_.set_gone();
  EXPECT_EQ(claim_block(map_, kFirstAddress, &claimed), Claim::unusable);
  ASSERT_TRUE(context_.begin_again());
  EXPECT_EQ(claim_block(map_, kFirstAddress, &claimed), Claim::claimed);
}

// A claim by a thread that has looked the record up for its earlier life.
TEST_F(PointerMapTest, AClaimFromAnEarlierLifeFails) {
  Block* const reused = block(kFirstAddress);
  const std::uint64_t seen = reused->state.word();
  reused->state.store(BlockState::leaving);
  reused->state.begin_new_life();
  EXPECT_FALSE(reused->state.claim(seen));
  reused->state.store(BlockState::live);
  EXPECT_FALSE(reused->state.claim(seen));
  EXPECT_EQ(reused->state.load(), BlockState::live);
  add_block(map_, reused);
  ClaimedBlock claimed;
  EXPECT_EQ(claim_block(map_, kFirstAddress, &claimed), Claim::claimed);
}

class PointerMapThreadsTest : public PointerMapTest {
 protected:
  // Runs `body(number)` on each of `count` threads, all at once.
  template <typename Body>
  static void in_threads(int count, const Body& body) {
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    for (int number = 0; number < count; ++number) {
      threads.emplace_back([&, number] {
        ++ready;
        while (ready < count) std::this_thread::yield();
        body(number);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

TEST_F(PointerMapThreadsTest, OneOfSeveralThreadsThatFreeAnAddressGetsIt) {  // contract 3
  constexpr int kThreads = 2;
  const std::vector<Block*> blocks = insert_several(20'000);
  std::atomic<std::size_t> arrived{0};
  std::atomic<std::size_t> claimed{0};
  std::atomic<std::size_t> refused{0};
  in_threads(kThreads, [&](int) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      ++arrived;
      for (unsigned looks = 1; arrived < kThreads * (i + 1); ++looks) {
        if (looks % 1024 == 0) std::this_thread::yield();
      }
      ClaimedBlock found;
      const Claim claim = claim_block(map_, address_of(i), &found);
      if (claim == Claim::claimed && found.block == blocks[i]) ++claimed;
      if (claim == Claim::not_live) ++refused;
    }
  });
  EXPECT_EQ(claimed, blocks.size());
  EXPECT_EQ(refused, (kThreads - 1) * blocks.size());
}

TEST_F(PointerMapThreadsTest, WritersLoseNothingOfEachOther) {
  constexpr std::size_t kEach = 4000;
  std::vector<Block*> blocks;
  for (std::size_t i = 0; i < 4 * kEach; ++i) blocks.push_back(block(address_of(i)));
  in_threads(4, [&](int number) {
    for (std::size_t i = static_cast<std::size_t>(number); i < blocks.size(); i += 4) {
      EXPECT_EQ(add_block(map_, blocks[i]), nullptr);
      EXPECT_EQ(i % 8 >= 4 && map_.erase(blocks[i]), i % 8 >= 4);
    }
  });
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    ASSERT_EQ(map_.find(address_of(i)), i % 8 >= 4 ? nullptr : blocks[i]);
  }
}

// A free takes no lock: its block must be found while others come and go, and the table with them.
TEST_F(PointerMapThreadsTest, AReaderBesideAWriterMissesNothing) {
  constexpr std::size_t kStable = 900;  // as many as the first table has without growing
  constexpr std::size_t kChanging = 20'000;
  constexpr std::size_t kLive = 100;
  constexpr std::uint64_t kLongestNs = 700'000'000;
  constexpr std::uint64_t kFilled = 2 * kBytes;
  const std::vector<Block*> stable = insert_several(kStable);
  std::vector<Block*> changing;
  for (std::size_t i = 0; i < kChanging; ++i) changing.push_back(block(address_of(kStable + i)));
  std::atomic<bool> done{false};
  std::atomic<std::size_t> missed{0};
  std::atomic<std::size_t> wrong{0};
  const auto write = [&] {
    const std::uint64_t end = util::now_ns() + kLongestNs;
    for (std::size_t i = 0; i % 1000 != 0 || util::now_ns() < end; ++i) {
      Block* const next = changing[i % kChanging];
      if (i < kChanging) next->capacity = kFilled;  // no atomic: as the engine fills a record
      add_block(map_, next);
      if (i >= kLive) map_.erase(changing[(i - kLive) % kChanging]);
    }
    done = true;
  };
  const auto find_stable = [&](std::size_t from) {
    for (std::size_t i = from; !done.load(std::memory_order_relaxed); ++i) {
      const Block* const expected = stable[i % kStable];
      if (map_.find(expected->address) != expected) ++missed;
    }
  };
  const auto find_changing = [&] {
    for (std::size_t i = 0; !done; i += 7) {
      const Block* const expected = changing[i % kChanging];
      const Block* const found = map_.find(expected->address);
      if (found != nullptr && (found != expected || found->capacity != kFilled)) ++wrong;
      // One probe may find another address's block, which its callers notice.
      const Block* const at_once = map_.find_at_once(expected->address);
      if (at_once == nullptr || at_once->address != expected->address) continue;
      if (at_once != expected || at_once->capacity != kFilled) ++wrong;
    }
  };
  in_threads(6, [&](int number) {
    if (number == 0) {
      write();
    } else if (number == 1) {
      find_changing();
    } else {
      find_stable(static_cast<std::size_t>(number) * 100);
    }
  });
  EXPECT_EQ(missed, 0u);
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace cupool::engine
