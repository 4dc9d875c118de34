// SPDX-License-Identifier: Apache-2.0
// The fast path: what threads keep to themselves, when it comes back, and that it meets no shared
// lock (docs/design.md, Engine). Against a driver whose GPU the test moves by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "engine_fast_path_fixture.h"

namespace cupool::engine {
namespace {

constexpr std::uint64_t kSmall = 64 << 10;
constexpr std::uint64_t kLarge = 4 << 20;

TEST_F(FastPathTest, ABatchIsCompleteOnlyAfterAFenceThatWasRecordedAfterIt) {  // I1
  start({{"CUPOOL_MAX_PENDING", "2%"}});                                       // no free waits
  gpu.work.store(Work::held);
  std::map<CUdeviceptr, std::uint64_t> recorded_before;
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 300; ++i) {
      const CUdeviceptr address = allocate(kSmall);
      const auto freed = recorded_before.find(address);
      if (freed != recorded_before.end()) {
        ASSERT_GT(gpu.completed.load(), freed->second)
            << "no fence recorded after the free is complete";
      }
      recorded_before[address] = gpu.recorded.load();
      free(address);
    }
    gpu.completed.store(gpu.recorded.load() / 2);
  }
  EXPECT_GT(count(Counter::served_thread_cache_total), 2000u) << "and they do come back";
  expect_identity();
}

// What a pair may cost in shared locks: a few for each batch of 128, whatever the GPU does.
class SteadyStateTest : public FastPathTest, public testing::WithParamInterface<Work> {};

TEST_P(SteadyStateTest, ThreadsWithTheirOwnBlocksHardlyMeet) {  // I5
  constexpr int kThreads = 8;
  constexpr int kPairs = 20000;
  constexpr int kWarmUp = 5000;
  gpu.work.store(GetParam());
  gpu.takes_ns.store(20'000);
  std::array<std::uint64_t, kThreads> locks{};
  // More than may wait at a time lies ready for each: nobody needs fresh memory while another, at a
  // fence, is off its processor.
  in_thread([&] { free_all(allocate_several(2 * kThreads * kWarmUp, 2048)); });
  std::vector<std::thread> threads;
  for (int index = 0; index < kThreads; ++index) {
    threads.emplace_back([&, index] {
      pairs(kWarmUp, 2048);
      const std::uint64_t before = shared_locks_taken;
      pairs(kPairs, 2048);
      locks[static_cast<std::size_t>(index)] = shared_locks_taken - before;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::uint64_t taken : locks) EXPECT_LE(1000 * taken, 60u * kPairs);
  const std::uint64_t mallocs = count(Counter::malloc_calls_total);
  EXPECT_EQ(mallocs, std::uint64_t{kThreads} * (kPairs + 3 * kWarmUp));
  const std::uint64_t in_pairs = std::uint64_t{kThreads} * (kPairs + kWarmUp);
  EXPECT_LE(count(Counter::served_shared_cache_total) * 100, in_pairs);
  EXPECT_LE(count(Counter::fences_total) * 64, in_pairs) << "a fence serves many frees";
  expect_identity();
}
INSTANTIATE_TEST_SUITE_P(Gpu, SteadyStateTest, testing::Values(Work::none, Work::timed),
                         [](const auto& tested) {
                           return tested.param == Work::none ? "Idle" : "Busy";
                         });

TEST_F(FastPathTest, OneThreadAloneTakesTwoSharedLocksForABatch) {  // I5
  pairs(2000, kSmall);
  const std::uint64_t before = shared_locks_taken;
  pairs(12800, kSmall);
  EXPECT_LE(shared_locks_taken - before, 2u * 12800 / 256 + 2) << "16 MiB are 256 blocks";
}

// A fence that takes the driver long: the first one, until it is let go.
std::atomic<bool> fence_begun{false};
std::atomic<bool> fence_may_end{false};
CUresult record_slowly_once(CUcontext context, CUevent event) {
  if (!fence_begun.exchange(true)) {
    while (!fence_may_end.load()) std::this_thread::yield();
  }
  return test::fake::record(context, event);
}

TEST_F(FastPathTest, NobodyQueuesUpBehindAnotherThreadsFence) {  // I5
  fence_begun = fence_may_end = false;
  driver_->cuCtxRecordEvent = record_slowly_once;
  std::thread other([&] { pairs(1000, kSmall); });
  while (!fence_begun.load()) std::this_thread::yield();
  std::promise<void> done;
  std::thread mine([&] {
    pairs(3 * 256, kSmall);  // three batches of 16 MiB
    done.set_value();
  });
  EXPECT_EQ(done.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  fence_may_end = true;
  mine.join();
  other.join();
  expect_identity();
}

TEST_F(FastPathTest, OneFenceServesALargestBatch) {
  pairs(4000, 4096);
  EXPECT_EQ(count(Counter::growth_total), 512u);
  const std::uint64_t fences = count(Counter::fences_total);
  pairs(51'200, 4096);
  EXPECT_LE(count(Counter::fences_total) - fences, 101u) << "one for 512 frees";
}

TEST_F(FastPathTest, WhereMuchMayBePendingHardlyAnyCallEndsABatch) {
  start({{"CUPOOL_MAX_PENDING", "25%"}});
  pairs(200'000, 4096);
  const std::uint64_t fences = count(Counter::fences_total);
  pairs(204'800, 4096);
  EXPECT_LE(count(Counter::fences_total) - fences, 101u) << "one for 2048 frees";
  expect_identity();
}

// A program that copies, waits for the copy and frees: the free finds it done, or waits, and the
// block then goes the way of all others.
class AfterCopiesTest : public FastPathTest, public testing::WithParamInterface<Work> {};

TEST_P(AfterCopiesTest, FreesShareFences) {  // I5
  start({{"CUPOOL_FREE_MODE", "auto"}});
  gpu.work.store(GetParam());
  const auto copy_and_free = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const CUdeviceptr block = allocate(4096);
      context_->host_work().submitted(CU_STREAM_LEGACY);
      ASSERT_TRUE(context_->host_work().maybe_pending());
      free(block);
      ASSERT_FALSE(context_->host_work().maybe_pending());
    }
  };
  copy_and_free(2000);
  const std::uint64_t fences = count(Counter::fences_total);
  const std::uint64_t waits = count(Counter::free_waits_total);
  copy_and_free(6400);
  EXPECT_LE(count(Counter::fences_total) - fences, 6400u / 64);
  EXPECT_EQ(count(Counter::free_waits_total) - waits, GetParam() == Work::none ? 0u : 6400u);
  EXPECT_EQ(count(Counter::free_calls_total), 8400u);
  expect_identity();
}
INSTANTIATE_TEST_SUITE_P(Gpu, AfterCopiesTest, testing::Values(Work::none, Work::held),
                         [](const auto& tested) {
                           return tested.param == Work::none ? "Idle" : "Busy";
                         });

TEST_F(FastPathTest, WhatAThreadOnlyFreesIsAllForOthers) {
  constexpr int kBlocks = 4096;
  const auto passed = allocate_several(kBlocks, 4096);
  std::thread consumer([&] {
    free_all(passed);
    // It is still there, and keeps no more than what it has freed last.
    EXPECT_LE(context_->ordering().epochs().pending_bytes() + std::uint64_t{kBlocks} * 4096 -
                  context_->cache().bytes(),
              std::uint64_t{1024} * 4096);
  });
  consumer.join();
  expect_identity();
}

// Contract 8: what others may know is not served again, in a batch of its like neither.
TEST_F(FastPathTest, SharedBlocksAmongManyOfAKindAreNotKept) {
  const auto first = allocate_several(1000, kSmall);
  std::set<CUdeviceptr> shared;
  for (std::size_t i = 7; i < first.size(); i += 31) {
    allocator_->queries().mark_shared_outside(first[i], PointerQueries::KnownBy::address,
                                              PointerQueries::KnownUntil::freed);
    shared.insert(first[i]);
  }
  free_all(first);
  std::size_t again = 0;
  for (int round = 0; round < 5; ++round) {
    const auto blocks = allocate_several(1000, kSmall);
    for (const CUdeviceptr block : blocks) {
      EXPECT_EQ(shared.count(block), 0u);
      again += static_cast<std::size_t>(std::count(first.begin(), first.end(), block));
    }
    free_all(blocks);
  }
  EXPECT_GT(again, 1000u) << "the others are";
  expect_identity();
}

TEST_F(FastPathTest, AFreeInACallbackGetsTheDriversAnswer) {  // I7
  const CUdeviceptr address = allocate(kSmall);
  context_->set_poisoned();
  driver_->cuCtxGetCurrent = [](CUcontext*) { return CUDA_ERROR_NOT_PERMITTED; };
  EXPECT_EQ(allocator_->frees().try_free(address), CUDA_ERROR_NOT_PERMITTED);
}

TEST_F(FastPathTest, BlocksThatAnotherThreadFreesComeBack) {
  constexpr int kRounds = 400;
  std::uint64_t locks = 0;
  std::vector<CUdeviceptr> passed;
  std::atomic<int> turn{0};
  std::thread consumer([&] {
    for (int round = 0; round < kRounds; ++round) {
      while (turn.load() != 2 * round + 1) std::this_thread::yield();
      free_all(passed);
      turn.store(2 * round + 2);
    }
  });
  std::uint64_t grown = 0;
  for (int round = 0; round < kRounds; ++round) {
    if (round == kRounds / 2) {
      grown = count(Counter::growth_total);
      locks = shared_locks_taken;
    }
    passed = allocate_several(100, kSmall);
    turn.store(2 * round + 1);
    while (turn.load() != 2 * round + 2) std::this_thread::yield();
  }
  consumer.join();
  EXPECT_EQ(count(Counter::growth_total), grown) << "the second half lives from the first";
  EXPECT_LE(grown, 4000u);
  // In bulk: not one lock for each block.
  EXPECT_LE(shared_locks_taken - locks, std::uint64_t{kRounds / 2} * 100 / 20);
  expect_identity();
}

TEST_F(FastPathTest, TheEndOfAThreadGivesUpWhatItFreedAndKept) {
  gpu.work.store(Work::held);
  in_thread([&] { free_all(allocate_several(500, kSmall)); });
  EXPECT_GT(context_->ordering().epochs().pending_bytes(), 0u);
  const std::uint64_t grown = count(Counter::growth_total);
  gpu.work.store(Work::none);
  const auto taken = allocate_several(500, kSmall);
  EXPECT_EQ(count(Counter::growth_total), grown) << "all 500 are served again";
  EXPECT_EQ(context_->ordering().epochs().pending_bytes(), 0u);
  free_all(taken);
  expect_identity();
}

TEST_F(FastPathTest, OutOfMemoryReachesWhatOtherThreadsHaveInFlight) {  // contract 4
  gpu.work.store(Work::timed);
  gpu.takes_ns.store(50'000'000);
  std::atomic<int> stage{0};
  std::thread other([&] {
    free_all(allocate_several(40, kLarge));
    stage.store(1);
    while (stage.load() != 2) std::this_thread::yield();
  });
  while (stage.load() != 1) std::this_thread::yield();
  EXPECT_EQ(now(Gauge::held_bytes), 40 * static_cast<std::int64_t>(kLarge));
  Patience patience;
  EXPECT_TRUE(allocator_->out_of_memory().give_back_idle(*context_, patience));
  EXPECT_EQ(now(Gauge::held_bytes), 0);
  EXPECT_EQ(context_->ordering().epochs().pending_bytes(), 0u);
  stage.store(2);
  other.join();
  expect_identity();
}

TEST_F(FastPathTest, ASynchronisationOfTheProgramCompletesBatchesOfAllThreads) {
  gpu.work.store(Work::held);
  std::atomic<int> stage{0};
  std::thread other([&] {
    free_all(allocate_several(300, kSmall));
    stage.store(1);
    while (stage.load() != 2) std::this_thread::yield();
    const std::uint64_t grown = count(Counter::growth_total);
    const auto taken = allocate_several(300, kSmall);
    EXPECT_EQ(count(Counter::growth_total), grown);
    free_all(taken);
  });
  while (stage.load() != 1) std::this_thread::yield();
  const std::uint64_t fences = gpu.recorded.load();
  EXPECT_EQ(allocator_->synchronization().of_context(context_, Synchronization::Failure::counted,
                                                     [&] { return driver_->cuCtxSynchronize(); }),
            CUDA_SUCCESS);
  EXPECT_EQ(gpu.recorded.load(), fences) << "it needs no fence";
  EXPECT_EQ(context_->ordering().epochs().pending_bytes(), 0u);
  stage.store(2);
  other.join();
  expect_identity();
}

// And nothing where the driver says that another context is current, or where the wait has failed.
TEST_F(FastPathTest, AWaitForTheLegacyStreamReclaimsWhatWasFreed) {
  gpu.work.store(Work::held);
  const auto free_some_and_wait = [&](CUresult waited) {
    free_all(allocate_several(100, kLarge));
    EXPECT_GT(context_->ordering().epochs().pending_bytes(), 0u);
    return allocator_->synchronization().of_legacy_stream(*context_, [&] { return waited; });
  };
  EXPECT_EQ(free_some_and_wait(CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_EQ(context_->ordering().epochs().pending_bytes(), 0u);
  EXPECT_EQ(free_some_and_wait(CUDA_ERROR_NOT_PERMITTED), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_GT(context_->ordering().epochs().pending_bytes(), 0u);
  test::fake::drivers.fetch_add(1000);
  EXPECT_EQ(free_some_and_wait(CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_GT(context_->ordering().epochs().pending_bytes(), 0u);
  test::fake::drivers.fetch_sub(1000);
  EXPECT_EQ(free_some_and_wait(CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_EQ(context_->ordering().epochs().pending_bytes(), 0u);
  expect_identity();
}

// The thread's own batch needs no epoch for that, however small it is.
TEST_F(FastPathTest, AWaitForTheLegacyStreamReclaimsTheThreadsOwnBatch) {
  const auto wait = [&](CUresult result) {
    EXPECT_EQ(allocator_->synchronization().of_legacy_stream(*context_, [&] { return result; }),
              result);
  };
  pairs(1000, kSmall);  // for batches of many
  wait(CUDA_SUCCESS);
  gpu.work.store(Work::held);
  const auto blocks = allocate_several(20, kSmall);
  free_all(blocks);
  const std::uint64_t fences = gpu.recorded.load();
  const auto freed_again = [&] {
    const auto taken = allocate_several(static_cast<int>(blocks.size()), kSmall);
    std::size_t found = 0;
    for (const CUdeviceptr address : taken)
      found += std::count(blocks.begin(), blocks.end(), address);
    return found;
  };
  wait(CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(now(Gauge::retired_bytes), static_cast<std::int64_t>(20 * kSmall));
  wait(CUDA_SUCCESS);
  EXPECT_EQ(now(Gauge::retired_bytes), 0);
  EXPECT_EQ(freed_again(), blocks.size());
  EXPECT_EQ(gpu.recorded.load(), fences);
  expect_identity();
}

// What another thread has had join an epoch meanwhile is that epoch's.
TEST_F(FastPathTest, AWaitForTheLegacyStreamLeavesABatchThatIsNotTheThreadsAnyMore) {
  pairs(1000, kSmall);
  allocator_->synchronization().of_legacy_stream(*context_, [] { return CUDA_SUCCESS; });
  gpu.work.store(Work::held);
  free_all(allocate_several(20, kSmall));
  for (const Drain what : {Drain::flush, Drain::retired}) {
    EXPECT_EQ(allocator_->synchronization().of_legacy_stream(*context_,
                                                             [&] {
                                                               in_thread([&] {
                                                                 context_->threads().drain(what);
                                                               });
                                                               return CUDA_SUCCESS;
                                                             }),
              CUDA_SUCCESS);
    // The epoch may be older than the wait's end and newer than its begin: nobody can tell.
    EXPECT_EQ(now(Gauge::retired_bytes), static_cast<std::int64_t>(20 * kSmall));
    expect_identity();
    EXPECT_EQ(
        allocator_->synchronization().of_legacy_stream(*context_, [] { return CUDA_SUCCESS; }),
        CUDA_SUCCESS);
    EXPECT_EQ(now(Gauge::retired_bytes), 0);
    free_all(allocate_several(20, kSmall));
  }
  expect_identity();
}

// A fence costs as much as ten pairs: sixteen blocks share one, as long as they are 64 MiB at most,
// or a 16th of what may be pending.
TEST_F(FastPathTest, LargeBlocksShareAFence) {
  const auto fences_of = [&](std::uint64_t pair_bytes) {
    pairs(100, pair_bytes);
    const std::uint64_t before = gpu.recorded.load();
    pairs(1600, pair_bytes);
    return gpu.recorded.load() - before;
  };
  EXPECT_LE(fences_of(kLarge), 1600u / 16 + 1);
  start({});  // idle blocks of another size count in the budget
  EXPECT_LE(fences_of(4 * kLarge), 1600u / 4 + 1);
  EXPECT_LE(now(Gauge::held_bytes), 2 * (std::int64_t{64} << 20) + (32 << 20));
  start({{"CUPOOL_MAX_PENDING", "256M"}});
  EXPECT_GE(fences_of(4 * kLarge), 1600u) << "a batch is 16 MiB there";
  expect_identity();
}

TEST_F(FastPathTest, LargeBlocksTakeTheHotPathToo) {
  free(allocate(kLarge));
  EXPECT_EQ(allocator_->synchronization().of_legacy_stream(*context_, [] { return CUDA_SUCCESS; }),
            CUDA_SUCCESS);
  untimed_calls = kTimedShare;
  const CUdeviceptr served = allocate_hot(*context_, kLarge - 1);
  const Block* const block = allocator_->blocks().find(served);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(block->requested, kLarge - 1);
  EXPECT_EQ(block->capacity, kLarge);
  EXPECT_EQ(allocate_hot(*context_, kLarge), 0u) << "there was one";
  free(served);
  EXPECT_EQ(allocator_->synchronization().of_legacy_stream(*context_, [] { return CUDA_SUCCESS; }),
            CUDA_SUCCESS);
  untimed_calls = kTimedShare;
  // Neither is served, nor wraps round to a size that could be.
  for (const std::uint64_t bytes : {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
    EXPECT_EQ(allocate_hot(*context_, bytes), 0u) << bytes;
  }
  expect_identity();
}

TEST_F(FastPathTest, BlocksOfAContextThatIsGoneAreForgotten) {  // contract 10
  gpu.work.store(Work::held);
  free_all(allocate_several(300, kSmall));
  const CUdeviceptr live = allocate(kSmall);
  allocator_->endings().context_gone(*context_);
  EXPECT_EQ(now(Gauge::held_bytes), 0);
  EXPECT_EQ(now(Gauge::retired_bytes), 0);
  EXPECT_EQ(now(Gauge::cached_bytes), 0);
  EXPECT_FALSE(free_hot(*allocator_, live).has_value());
  EXPECT_FALSE(allocator_->frees().try_free_live(live));
  // The same handle again: a new life, with nothing of the old one.
  context_ = allocator_->registry().current();
  gpu.work.store(Work::none);
  pairs(1000, kSmall);
  expect_identity();
}

TEST_F(FastPathTest, MemoryThatOthersKnowIsNotServedAgain) {  // contract 8
  std::vector<CUdeviceptr> known;
  for (int i = 0; i < 300; ++i) {
    known.push_back(allocate(kSmall));
    allocator_->queries().mark_shared_outside(known.back(), PointerQueries::KnownBy::address,
                                              PointerQueries::KnownUntil::freed);
  }
  free_all(known);
  Patience patience;
  allocator_->out_of_memory().give_back_idle(*context_, patience);
  EXPECT_EQ(now(Gauge::held_bytes), 0);
  const CUdeviceptr fresh = allocate(kSmall);
  EXPECT_EQ(std::count(known.begin(), known.end(), fresh), 0);
  expect_identity();
}

TEST_F(FastPathTest, NothingIdleIsKeptWhereTheUserWantsNone) {
  start({{"CUPOOL_MAX_CACHED", "0"}});
  pairs(1000, kSmall);
  EXPECT_EQ(now(Gauge::cached_bytes), 0);
  expect_identity();
}

}  // namespace
}  // namespace cupool::engine
