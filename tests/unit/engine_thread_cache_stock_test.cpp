// SPDX-License-Identifier: Apache-2.0
// What others have of the caches of threads: the figures that a tally tells, and the stock that
// parks caches with nothing new.
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "engine_thread_cache_fixture.h"

namespace cupool::engine {
namespace {

// What the tally tells the statistics.
class ThreadCacheTallyTest : public ThreadCacheTest {
 protected:
  std::int64_t current(stats::Gauge gauge) const { return life_.stats.value(gauge).current; }
  std::int64_t peak(stats::Gauge gauge) const { return life_.stats.value(gauge).peak; }
  std::uint64_t total(stats::Counter counter) const { return life_.stats.value(counter); }
  Tally& tally() { return cache_.tally; }
  void fold() { tally().fold(life_.stats); }
};

TEST_F(ThreadCacheTallyTest, EveryByteMovesFromOneFigureToAnother) {
  using stats::Counter;
  using stats::Gauge;
  tally().count_malloc(1000, 1024);
  tally().count_malloc(3000, 3072);
  fold();
  EXPECT_EQ(current(Gauge::application_bytes), 4000);
  EXPECT_EQ(current(Gauge::device_bytes), 4000);
  EXPECT_EQ(current(Gauge::rounding_bytes), 96);
  EXPECT_EQ(current(Gauge::cached_bytes), -4096);
  tally().count_free(1000, 1024);
  fold();
  EXPECT_EQ(current(Gauge::application_bytes), 3000);
  EXPECT_EQ(current(Gauge::rounding_bytes), 72);
  EXPECT_EQ(current(Gauge::retired_bytes), 1024);
  tally().reclaimed += 1024;
  fold();
  EXPECT_EQ(current(Gauge::retired_bytes), 0);
  EXPECT_EQ(current(Gauge::cached_bytes), -3072);
  fold();
  EXPECT_EQ(current(Gauge::cached_bytes), -3072) << "told once";
  EXPECT_EQ(total(Counter::malloc_calls_total), 2u);
  EXPECT_EQ(total(Counter::served_thread_cache_total), 2u);
  EXPECT_EQ(total(Counter::malloc_requested_bytes_total), 4000u);
  EXPECT_EQ(total(Counter::free_calls_total), 1u);
  EXPECT_EQ(total(Counter::free_bytes_total), 1000u);
}

TEST_F(ThreadCacheTallyTest, APeakBetweenTwoFoldsIsSeen) {
  tally().count_malloc(1000, 1024);
  tally().count_malloc(1000, 1024);
  tally().count_free(1000, 1024);
  tally().count_free(1000, 1024);
  fold();
  EXPECT_EQ(current(stats::Gauge::application_bytes), 0);
  EXPECT_EQ(peak(stats::Gauge::application_bytes), 2000);
  EXPECT_EQ(peak(stats::Gauge::device_bytes), 2000);
}

TEST_F(ThreadCacheTallyTest, IsDueByItsBytesEitherWay) {
  EXPECT_FALSE(tally().is_due(0));
  EXPECT_FALSE(tally().is_due_after(100, 100));
  EXPECT_TRUE(tally().is_due_after(101, 100));
  EXPECT_FALSE(tally().is_due_after(-100, 100));
  EXPECT_TRUE(tally().is_due_after(-101, 100));
  tally().count_free(60, 512);
  EXPECT_FALSE(tally().is_due(60));
  EXPECT_TRUE(tally().is_due(59));
  EXPECT_TRUE(tally().is_due_after(-41, 100));
  tally().count_malloc(60, 512);
  EXPECT_FALSE(tally().is_due(0));
  for (int i = 0; i < 4094; ++i) tally().count_free(0, 512);
  EXPECT_FALSE(tally().is_long());
  tally().count_free(0, 512);
  EXPECT_TRUE(tally().is_long()) << "by its calls";
}

TEST_F(ThreadCacheTallyTest, CallsAndOwnerOutlastAFold) {
  const auto mallocs = [] {
    stats::ThreadSnapshot others;
    std::uint64_t other_threads = 0;
    std::uint64_t sum = 0;
    for (const auto& each : stats::thread_snapshots(&others, &other_threads)) {
      sum += each.malloc_calls_total;
    }
    return sum + others.malloc_calls_total;
  };
  const std::uint64_t before = mallocs();
  cache_.set_owner(stats::this_thread());
  for (std::uint64_t i = 1; i <= 3; ++i) {
    tally().count_malloc(1000, 1024);
    tally().count_free(1000, 1024);
    fold();
    EXPECT_EQ(tally().calls(), 2 * i);
    EXPECT_EQ(mallocs(), before + i);
  }
}

// Caches of several threads, as a context has them.
class ThreadCacheStockTest : public ThreadCacheTest {
 protected:
  ~ThreadCacheStockTest() override {
    while (!taken_.empty()) put_back(*taken_.back(), true);
    stock().delete_unused();
  }
  ThreadCacheStock& stock() { return context_.threads().caches(); }
  ThreadCache& take() {
    taken_.push_back(stock().take());
    return *taken_.back();
  }
  void put_back(ThreadCache& cache, bool context_gone) {
    stock().put_back(&cache, context_gone);
    taken_.erase(std::find(taken_.begin(), taken_.end(), &cache));
  }
  // As its thread does something.
  static void use(ThreadCache& cache) {
    const Guard guard(cache);
    cache.tally.count_malloc(kSmall, kSmall);
  }
  std::multiset<ThreadCache*> visit_active() {
    std::multiset<ThreadCache*> visited;
    stock().for_each_active([&](ThreadCache& cache) {
      EXPECT_FALSE(cache.try_lock()) << "under its lock";
      visited.insert(&cache);
      cache.tally.fold(life_.stats);
    });
    return visited;
  }
  std::multiset<ThreadCache*> visit_all() {
    std::multiset<ThreadCache*> visited;
    stock().for_each([&](ThreadCache& cache) {
      EXPECT_FALSE(cache.try_lock()) << "under its lock";
      visited.insert(&cache);
    });
    return visited;
  }

  std::vector<ThreadCache*> taken_;
};

TEST_F(ThreadCacheStockTest, OnlyCachesWithSomethingNewAreActive) {
  std::mt19937 random(20261124);
  for (int i = 0; i < 6; ++i) take();
  const std::multiset<ThreadCache*> all(taken_.begin(), taken_.end());
  for (int round = 0; round < 200; ++round) {
    std::multiset<ThreadCache*> used;
    for (ThreadCache* cache : taken_) {
      if (random() % 2 == 0) continue;
      use(*cache);
      used.insert(cache);
    }
    ASSERT_EQ(visit_active(), used) << round;
    for (ThreadCache* cache : taken_) EXPECT_EQ(cache->is_parked(), used.count(cache) == 0);
    ASSERT_EQ(visit_all(), all) << "the parked ones too";
  }
}

TEST_F(ThreadCacheStockTest, AParkedCacheIsLockedUntilItsThreadWantsIt) {
  ThreadCache& cache = take();
  EXPECT_TRUE(visit_active().empty());
  EXPECT_TRUE(cache.is_parked());
  EXPECT_FALSE(cache.try_lock()) << "by the stock: the hot path notices without another look";
  EXPECT_TRUE(cache.is_parked());
  cache.lock();
  EXPECT_FALSE(cache.is_parked());
  cache.unlock();
  EXPECT_FALSE(stock().unpark(cache)) << "it is not parked any more";
  EXPECT_TRUE(cache.try_lock());
  cache.unlock();
}

TEST_F(ThreadCacheStockTest, ABatchOrAReclaimedBlockIsNewToo) {
  ThreadCache& first = take();
  ThreadCache& second = take();
  {
    const Guard guard(first);
    first.retire(block(kSmall));
  }
  {
    const Guard guard(second);
    second.tally.reclaimed += kSmall;
  }
  EXPECT_EQ(visit_active(), (std::multiset<ThreadCache*>{&first, &second}));
  EXPECT_EQ(visit_active(), std::multiset<ThreadCache*>{&first}) << "its batch has not joined";
  first.flush(ordering_.epochs());
  EXPECT_TRUE(visit_active().empty());
}

TEST_F(ThreadCacheStockTest, TheCacheOfAThreadThatEndedIsTheNextThreads) {
  ThreadCache* const first = &take();
  ThreadCache* const second = &take();
  EXPECT_EQ(stock().in_use(), 2u);
  put_back(*first, false);
  EXPECT_EQ(stock().in_use(), 1u);
  EXPECT_TRUE(first->is_parked());
  EXPECT_EQ(visit_all(), (std::multiset<ThreadCache*>{first, second}))
      << "what is in it can be reached";
  EXPECT_EQ(&take(), first);
  EXPECT_FALSE(first->is_parked());
  EXPECT_EQ(stock().in_use(), 2u);
  use(*first);
  EXPECT_EQ(visit_active(), std::multiset<ThreadCache*>{first});
  put_back(*second, false);  // a parked one
  EXPECT_EQ(stock().in_use(), 1u);
}

TEST_F(ThreadCacheStockTest, WithItsContextACacheEnds) {
  ThreadCache& first = take();
  ThreadCache& second = take();
  ThreadCache& third = take();
  use(third);
  put_back(first, false);
  put_back(second, true);
  EXPECT_EQ(visit_all(), (std::multiset<ThreadCache*>{&first, &third}));
  stock().delete_unused();
  EXPECT_EQ(visit_all(), std::multiset<ThreadCache*>{&third}) << "those that no thread has";
  EXPECT_EQ(stock().in_use(), 1u);
  EXPECT_EQ(visit_active(), std::multiset<ThreadCache*>{&third});
}

// Whatever a thread counts is told once, beside reports that park its cache all the time.
TEST_F(ThreadCacheStockTest, ThreadsCountBesideWhoParksTheirCaches) {
  constexpr int kThreads = 3;
  constexpr std::uint64_t kCalls = 5000;
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, &cache = take()] {
      for (std::uint64_t call = 0; call < kCalls; ++call) {
        use(cache);
        if (call % 64 == 0) std::this_thread::yield();
      }
      --running;
    });
  }
  const auto tell = [&] {
    stock().for_each_active([&](ThreadCache& cache) { cache.tally.fold(life_.stats); });
  };
  while (running != 0) tell();
  for (std::thread& thread : threads) thread.join();
  tell();
  EXPECT_EQ(life_.stats.value(stats::Counter::malloc_calls_total), kThreads * kCalls);
  EXPECT_TRUE(visit_active().empty());
}

}  // namespace
}  // namespace cupool::engine
