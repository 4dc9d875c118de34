// SPDX-License-Identifier: Apache-2.0
// The cache of page-locked memory by itself: what fits what, the limit, retired blocks, decay; and
// the limit that a machine sets (contract 14).
#include "engine/host/host_cache.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/host/host_limit.h"
#include "engine/host/host_look.h"
#include "engine/reclaim/calls_under_way.h"
#include "engine/reclaim/pending_work.h"
#include "temporary_folder.h"

namespace cupool::engine {
namespace {

constexpr std::uint64_t kMib = 1 << 20;

// A thread that runs until it is told to end, and takes its turn when it is asked.
class InTurn {
 public:
  InTurn() : thread_([this] { work(); }) {}
  ~InTurn() { end(); }
  void run(std::function<void()> what) {
    std::unique_lock lock(mutex_);
    what_ = std::move(what);
    changed_.notify_all();
    changed_.wait(lock, [this] { return !what_; });
  }
  void end() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return what_ || over_; });
      if (!what_) return;
      what_();
      what_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> what_;
  bool over_ = false;
  std::thread thread_;
};

class HostCacheTest : public testing::Test {
 protected:
  HostCacheTest() { cache_.set_limit(64 * kMib); }

  Block& block(std::uint64_t bytes, unsigned kind = 0, unsigned node = 0) {
    blocks_.push_back(std::make_unique<Block>());
    Block& made = *blocks_.back();
    made.address = 0x10000 * blocks_.size();
    made.capacity = host_capacity_for(bytes);
    made.kind = host_tag(kind, node);
    made.state.store(BlockState::freed);
    return made;
  }
  HostCache::Taken cache(Block& block) {
    return cache_.cache(block, [this] { return alive_; });
  }
  HostCache::Taken retire(Block& block, std::uint64_t epoch) {
    return cache_.retire(block, EpochNumber{epoch}, [this] { return alive_; });
  }
  Block* pop(std::uint64_t bytes, unsigned kind = 0, unsigned node = 0,
             std::uint64_t complete = 0) {
    return at(cache_.pop(host_capacity_for(bytes), bytes, kind, node, EpochNumber{complete}));
  }

  Block* pop_others(std::uint64_t bytes) {
    std::uint64_t idle = 0;
    return at(cache_.pop_others(host_capacity_for(bytes), bytes, 0, 0, EpochNumber{0}, &idle));
  }

  // The block at this address.
  Block* at(void* memory) {
    for (const auto& each : blocks_) {
      if (reinterpret_cast<void*>(std::uint64_t{each->address}) == memory) return each.get();
    }
    EXPECT_EQ(memory, nullptr);
    return nullptr;
  }

  HostCache cache_;
  std::vector<std::unique_ptr<Block>> blocks_;
  bool alive_ = true;
};

TEST_F(HostCacheTest, ClassesAreInOrderAndWithinTheTable) {
  std::size_t last = 0;
  for (std::uint64_t pages = 1; pages <= kLargestHostBlock / kHostPage; pages += pages / 9 + 1) {
    const std::size_t index = host_class(pages * kHostPage);
    ASSERT_GE(index, last) << pages;
    ASSERT_LT(index + 1, kHostClasses) << pages;
    last = index;
  }
}

// A class has blocks of several sizes. The time of a call is bounded.
TEST_F(HostCacheTest, ASearchLooksAtFewBlocksOfAClass) {
  constexpr unsigned kLooks = 8;
  ASSERT_EQ(host_class(16 * kHostPage), host_class(17 * kHostPage));
  const auto push = [&](std::uint64_t pages) {
    Block& made = block(kHostPage);
    made.capacity = pages * kHostPage;
    EXPECT_EQ(cache(made), HostCache::Taken::yes);
  };
  for (const unsigned smaller : {kLooks - 1, kLooks}) {
    push(17);
    for (unsigned i = 0; i < smaller; ++i) push(16);
    void* const found = cache_.pop(17 * kHostPage, 17 * kHostPage, 0, 0, EpochNumber{0});
    EXPECT_EQ(found != nullptr, smaller < kLooks) << smaller;
    at(found);
    cache_.take(HostCache::Which::all);
  }
}

TEST_F(HostCacheTest, TakesNoMoreThanItIsAskedFor) {
  using Which = HostCache::Which;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(retire(block(kMib), 5), HostCache::Taken::yes);
  EXPECT_EQ(cache_.take(Which::all, 1).count, 1u);
  EXPECT_EQ(cache_.take(Which::all, kMib + 1).count, 2u);
  EXPECT_EQ(cache_.take(Which::all, 1).count, 0u);
}

TEST_F(HostCacheTest, ServesWhatFitsAndNothingElse) {
  Block& one = block(100 * 1024);
  EXPECT_EQ(cache(one), HostCache::Taken::yes);
  EXPECT_EQ(pop(101 * 1024), nullptr) << "too large";
  EXPECT_EQ(pop(80 * 1024), nullptr) << "more than an eighth would be wasted";
  EXPECT_EQ(pop(100 * 1024, 1), nullptr) << "of other flags";
  EXPECT_EQ(pop(100 * 1024, 0, 1), nullptr) << "of another node";
  EXPECT_EQ(pop(90 * 1024), &one);
  EXPECT_EQ(one.requested, 90 * 1024u);
  EXPECT_EQ(one.state.load(), BlockState::live);
  EXPECT_EQ(pop(100 * 1024), nullptr);
}

TEST_F(HostCacheTest, RetiredBlocksAreServedOnceTheirEpochIsComplete) {
  Block& first = block(8192);
  Block& second = block(8192);
  EXPECT_EQ(retire(first, 5), HostCache::Taken::yes);
  EXPECT_EQ(retire(second, 6), HostCache::Taken::yes);
  EXPECT_EQ(cache_.retired_bytes(), 16384u);
  EXPECT_EQ(pop(8192, 0, 0, 4), nullptr);
  EXPECT_EQ(pop(8192, 0, 0, 5), &first);
  EXPECT_EQ(pop(8192, 0, 0, 5), nullptr);
  EXPECT_EQ(pop(8192, 0, 0, 9), &second);
  EXPECT_EQ(cache_.retired_bytes(), 0u);
}

TEST_F(HostCacheTest, OtherThreadsFindWhatOneHasFreed) {
  pop(kMib);  // this thread has a shard
  Block& one = block(kMib);
  std::thread([&] { EXPECT_EQ(cache(one), HostCache::Taken::yes); }).join();
  EXPECT_EQ(pop(kMib), nullptr);
  EXPECT_EQ(pop_others(kMib), &one);
}

// Threads that use the same few blocks again and again keep them, if there are others.
TEST_F(HostCacheTest, WhatEndedThreadsLeftIsFoundBeforeARunningThreadsOwn) {
  pop(kMib);  // this thread has a shard
  InTurn owner;
  InTurn ended;
  Block& left = block(kMib);
  Block& owned = block(kMib);
  owner.run([&] { cache(owned); });
  ended.run([&] { cache(left); });
  ended.end();
  EXPECT_EQ(pop(kMib), nullptr);
  EXPECT_EQ(pop_others(kMib), &left);
  EXPECT_EQ(pop_others(kMib), &owned);
}

TEST_F(HostCacheTest, AThreadGetsWhatTheLastOneLeft) {
  pop(kMib);  // this thread has a shard
  Block& one = block(kMib);
  std::thread([&] { cache(one); }).join();
  std::thread([&] { EXPECT_EQ(pop(kMib), &one); }).join();
}

TEST_F(HostCacheTest, MoreThreadsThanShardsShareThem) {
  std::vector<std::unique_ptr<InTurn>> all;
  for (std::size_t i = 0; i < kHostShards + 3; ++i) {
    all.push_back(std::make_unique<InTurn>());
    Block& one = block(4096);
    all.back()->run([&] { EXPECT_EQ(cache(one), HostCache::Taken::yes); });
    all.back()->run([&] { EXPECT_NE(pop(4096), nullptr); });
  }
}

TEST_F(HostCacheTest, AMissKnowsWhatLiesIdle) {
  cache(block(kMib));
  std::thread([&] { cache(block(8192, 0, 1)); }).join();
  std::uint64_t idle = 0;
  EXPECT_EQ(cache_.pop_others(2 * kMib, 2 * kMib, 0, 0, EpochNumber{0}, &idle), nullptr);
  EXPECT_EQ(idle, kMib + 8192);
}

// What several threads believe of the GPU is one thing, so one look is enough for all.
TEST_F(HostCacheTest, OneThreadLooksAtTheGpuForAll) {
  const auto looks_in = [](int frees) {
    int looks = 0;
    for (int i = 0; i < frees; ++i) looks += look_is_due() ? 1 : 0;
    return looks;
  };
  InTurn first;
  InTurn second;
  first.run([&] { EXPECT_EQ(looks_in(1 + 256), 1); });
  second.run([&] { EXPECT_EQ(looks_in(1), 0); });
  for (int i = 0; i < 3; ++i) {
    first.run([&] { EXPECT_EQ(looks_in(256), 1); });
    second.run([&] { EXPECT_EQ(looks_in(256), 0) << "the other one has"; });
  }
  first.end();
  second.run([&] { EXPECT_EQ(looks_in(256 * 4), 4) << "nobody else does"; });
  InTurn third;
  third.run([&] { EXPECT_EQ(looks_in(1 + 256), 1) << "looks before its time do not count"; });
}

TEST_F(HostCacheTest, GivesOlderBlocksFirst) {
  Block& early = block(kMib);
  Block& used = block(4096);
  cache(early);
  cache(used);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(cache_.take(HostCache::Which::older).empty());
    cache_.end_turn();
    EXPECT_EQ(pop(4096), &used);
    cache(used);
  }
  BlockList taken = cache_.take(HostCache::Which::older);
  EXPECT_EQ(taken.pop(), &early);
  EXPECT_TRUE(taken.empty());
}

TEST_F(HostCacheTest, KeepsItsLimitWhateverThreadsHaveUsedOfIt) {
  cache_.set_limit(4 * kMib);
  std::vector<Block*> all;
  for (int i = 0; i < 4; ++i) {
    all.push_back(&block(kMib));
    EXPECT_EQ(cache(*all.back()), HostCache::Taken::yes);
  }
  EXPECT_EQ(cache(block(kHostPage)), HostCache::Taken::full);
  EXPECT_EQ(cache_.bytes(), 4 * kMib);
  for (int i = 0; i < 4; ++i) EXPECT_NE(pop(kMib), nullptr);
  // What this thread does not use any more, another one gets.
  Block& large = block(4 * kMib);
  std::thread([&] { EXPECT_EQ(cache(large), HostCache::Taken::yes); }).join();
  EXPECT_EQ(cache(*all.front()), HostCache::Taken::full);
}

TEST_F(HostCacheTest, TakesNothingOfAContextThatHasEnded) {
  alive_ = false;
  EXPECT_EQ(cache(block(4096)), HostCache::Taken::gone);
  EXPECT_EQ(cache_.bytes(), 0u);
}

TEST_F(HostCacheTest, DecayTakesWhatWasIdleForAWholeSpan) {
  Block& early = block(kMib);
  cache(early);
  for (std::uint32_t i = 0; i < HostCache::kDecaySteps; ++i) {
    EXPECT_TRUE(cache_.take(HostCache::Which::unneeded).empty());
    cache_.end_decay_step();
  }
  Block& late = block(kMib);
  cache(late);
  BlockList taken = cache_.take(HostCache::Which::unneeded);
  EXPECT_EQ(taken.pop(), &early);
  EXPECT_TRUE(taken.empty());
  Block& retired = block(kMib);
  retire(retired, 3);
  EXPECT_EQ(cache_.take(HostCache::Which::idle).count, 1u);
  EXPECT_EQ(cache_.take(HostCache::Which::all).count, 1u);
  EXPECT_EQ(cache_.bytes(), 0u);
  EXPECT_EQ(cache_.retired_bytes(), 0u);
}

TEST_F(HostCacheTest, HasNothingOnceAllIsTaken) {
  cache(block(kMib));
  EXPECT_TRUE(cache_.any());
  cache_.take(HostCache::Which::all);
  EXPECT_FALSE(cache_.any()) << "what the shard may take of the limit does not count";
}

TEST_F(HostCacheTest, GivesOutTheBlockThatIsAskedFor) {
  Block& idle = block(kMib);
  Block& retired = block(kMib);
  Block& other = block(kMib);
  cache(idle);
  std::thread([&] { retire(retired, 3); }).join();
  const auto take = [&](Block& which) { return cache_.take(which, which.state.word()); };
  EXPECT_FALSE(take(other));
  EXPECT_TRUE(take(retired));
  EXPECT_EQ(cache_.retired_bytes(), 0u);
  EXPECT_EQ(cache_.bytes(), kMib);
  EXPECT_FALSE(take(retired));
  EXPECT_TRUE(take(idle));
  EXPECT_FALSE(cache_.any());
  cache(other);
  EXPECT_EQ(pop(kMib), &other);
}

// A record that was looked up, and is another block's by now: of device memory, whose kind no list
// of the cache has, or of the cache itself.
TEST_F(HostCacheTest, GivesOutNoBlockOfAnEarlierLife) {
  Block& reused = block(kMib);
  const std::uint64_t word = reused.state.word();
  reused.state.begin_new_life();
  reused.kind = Block::kNoKind;
  EXPECT_FALSE(cache_.take(reused, word));
  reused.kind = host_tag(0, 0);
  cache(reused);
  EXPECT_FALSE(cache_.take(reused, word));
  EXPECT_EQ(cache_.bytes(), kMib);
}

TEST_F(HostCacheTest, KnowsNoKindOfWriteCombinedMemory) {
  EXPECT_EQ(host_kind(3), 3u);
  for (const unsigned flags : {4u, 5u, 7u, 8u, 16u}) EXPECT_EQ(host_kind(flags), kNoHostKind);
}

TEST_F(HostCacheTest, CountsCalls) {
  cache(block(4096));
  pop(4096);
  pop(4096);
  const HostCache::Counts counts = cache_.take_counts();
  EXPECT_EQ(counts.frees, 1u);
  EXPECT_EQ(counts.hits, 1u);
  EXPECT_EQ(cache_.take_counts().frees, 0u);
}

// The state that lets a free do without a fence.
// Nor beside a call that submits work.
TEST(PendingWork, IsNotKnownWhileACallIsUnderWay) {
  PendingWork::reset();
  std::optional<PendingWork::Claim> beside;
  {
    const CallsUnderWay::Call call;
    PendingWork::submitted();
    beside.emplace();
    beside->settle();
    EXPECT_FALSE(PendingWork::none());
  }
  beside->settle();
  EXPECT_TRUE(PendingWork::none()) << "submitted() comes before the end of a call";
}

TEST(PendingWork, IsNoneOnlyBehindACompleteFence) {
  PendingWork::reset();
  EXPECT_FALSE(PendingWork::none()) << "at the start nothing is known";
  {
    PendingWork::Claim claim;
    EXPECT_FALSE(PendingWork::none());
    claim.settle();
  }
  EXPECT_TRUE(PendingWork::none());
  PendingWork::submitted();
  EXPECT_FALSE(PendingWork::none());
  {
    PendingWork::Claim claim;
    PendingWork::submitted();  // behind the fence, perhaps
    claim.settle();
  }
  EXPECT_FALSE(PendingWork::none());
  {
    PendingWork::Claim earlier;
    PendingWork::Claim later;  // joins, so that threads do not void one another's claims
    PendingWork::submitted();
    PendingWork::Claim newest;
    earlier.settle();
    later.settle();
    EXPECT_FALSE(PendingWork::none()) << "submitted since";
    newest.settle();
    EXPECT_TRUE(PendingWork::none());
    PendingWork::submitted();
  }
  {
    PendingWork::Claim earlier;
    PendingWork::Claim later;
    later.settle();
    EXPECT_TRUE(PendingWork::none()) << "its fence is later still";
    earlier.settle();
  }
  EXPECT_TRUE(PendingWork::none());
  {
    PendingWork::submitted();
    PendingWork::Claim of_one_context(false);
    of_one_context.settle();
  }
  EXPECT_FALSE(PendingWork::none());
}

TEST(PendingWork, IsNeverKnownAgainOnceWorkMayBeUnseen) {
  PendingWork::reset();
  PendingWork::Claim before;
  PendingWork::distrust();
  before.settle();
  EXPECT_FALSE(PendingWork::none());
  PendingWork::Claim after;
  after.settle();
  EXPECT_FALSE(PendingWork::none());
  PendingWork::reset();
}

// A machine of files.
class HostLimitTest : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string root() const { return folder_.file("machine"); }
  std::uint64_t memory() { return memory_of_process(root()); }
  test::TemporaryFolder folder_;
};

TEST_F(HostLimitTest, IsTheMachinesWithoutAControlGroup) {
  EXPECT_GT(memory(), 0u);
  EXPECT_EQ(memory(), memory_of_process(root() + "/nowhere"));
}

TEST_F(HostLimitTest, IsTheLeastOfTheGroupsOnTheWay) {
  write("/proc/self/cgroup", "0::/a/b\n");
  write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  const std::uint64_t whole = memory();
  write("/sys/fs/cgroup/a/memory.max", "1048576\n");
  EXPECT_EQ(memory(), 1048576u);
  write("/sys/fs/cgroup/a/b/memory.max", "4096\n");
  EXPECT_EQ(memory(), 4096u);
  write("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(memory(), whole);
  write("/sys/fs/cgroup/memory.max", "8192\n");
  EXPECT_EQ(memory(), 8192u) << "of a container";
}

TEST_F(HostLimitTest, PassesOverLinesOfOtherForms) {
  const std::uint64_t whole = memory();
  write("/proc/self/cgroup", "nonsense\n0:no second\n0::group\n");
  EXPECT_EQ(memory(), whole);
  write("/sys/fs/cgroupgroup/memory.max", "4096\n");
  EXPECT_EQ(memory(), 4096u) << "a path that does not begin as others do";
}

TEST_F(HostLimitTest, KnowsTheFirstVersionToo) {
  write("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/7\n");
  write("/sys/fs/cgroup/memory/docker/7/memory.limit_in_bytes", "2097152\n");
  EXPECT_EQ(memory(), 2097152u);
  write("/sys/fs/cgroup/memory/docker/7/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_GT(memory(), 2097152u);
}

TEST_F(HostLimitTest, AutoIsASixteenthAndAtMostFourGib) {
  const config::LimitOption automatic{};
  EXPECT_EQ(most_cached_host_bytes(automatic, 16 * kMib), kMib);
  EXPECT_EQ(most_cached_host_bytes(automatic, std::uint64_t{1} << 40), std::uint64_t{4} << 30);
  EXPECT_EQ(most_cached_host_bytes({{3 * kMib, false}, false}, kMib), 3 * kMib);
  EXPECT_EQ(most_cached_host_bytes({{50, true}, false}, 8 * kMib), 4 * kMib);
  EXPECT_EQ(most_cached_host_bytes({{0, false}, false}, 8 * kMib), 0u);
}

}  // namespace
}  // namespace cupool::engine
