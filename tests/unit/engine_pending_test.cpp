// SPDX-License-Identifier: Apache-2.0
// How much may be pending, and how much is held for it (CUPOOL_MAX_PENDING, docs/design.md,
// Engine).
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine_fast_path_fixture.h"

namespace cupool::engine {
namespace {

class PendingTest : public FastPathTest {};

TEST_F(PendingTest, TheBoundOnPendingBytesCountsWhatThreadsHaveInFlight) {
  start({{"CUPOOL_MAX_PENDING", "64M"}});
  gpu.work.store(Work::held);
  std::int64_t most = 0;
  std::vector<std::thread> threads;
  std::mutex mutex;
  for (int index = 0; index < 4; ++index) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        free(allocate(1 << 20));
        const std::lock_guard<std::mutex> lock(mutex);
        most = std::max(most, now(Gauge::retired_bytes));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(count(Counter::free_waits_pending_limit_total), 0u);
  // What is retired and not waited for: the bound, and the block that each thread is freeing.
  EXPECT_LE(context_->ordering().epochs().pending_bytes(), 64u << 20);
  expect_identity();
}

// Whether it is a free or an allocation that finds nothing by which a batch joins an epoch.
TEST_F(PendingTest, TheBoundOnPendingBytesHoldsForBlocksOfAllSizes) {
  start({{"CUPOOL_MAX_PENDING", "64M"}});
  gpu.work.store(Work::held);
  for (std::uint64_t bytes = 16 << 10; bytes <= 64 << 20; bytes *= 2) {
    SCOPED_TRACE(bytes);
    std::uint64_t most = 0;
    for (std::uint64_t freed = 0; freed < 512 << 20; freed += bytes) {
      free(allocate(bytes));
      most = std::max(most, context_->ordering().epochs().pending_bytes());
    }
    EXPECT_LE(most, (64u << 20) + bytes);
  }
  EXPECT_GT(count(Counter::free_waits_pending_limit_total), 0u);
}

// Whose driver waits where a thread may be cancelled, with a call to cancel it pending (contract
// 11).
class CancelledTest : public FastPathTest {
 protected:
  cuda::Driver make_driver() override {
    cuda::Driver driver = FastPathTest::make_driver();
    driver.cuEventSynchronize = [](CUevent event) {
      pthread_testcancel();
      return test::fake::wait(event);
    };
    return driver;
  }
};

TEST_F(CancelledTest, AThreadLeavesNoWaitOfItsFreesBehind) {
  start({{"CUPOOL_MAX_PENDING", "64M"}});
  gpu.work.store(Work::held);
  std::atomic<bool> has_freed{false};
  in_thread([&] {
    pthread_cancel(pthread_self());
    for (int i = 0; i < 200; ++i) free(allocate(1 << 20));
    has_freed.store(true);
  });
  EXPECT_TRUE(has_freed.load());
  EXPECT_GT(count(Counter::free_waits_pending_limit_total), 0u);
}

// What is pending takes the place of what the program no longer has, not of more.
TEST_F(PendingTest, HalfOfWhatTheProgramHasNoMoreMayBePendingToo) {
  start({{"CUPOOL_MAX_PENDING", "64M"}});
  std::vector<CUdeviceptr> live = allocate_several(512, 1 << 20);
  gpu.work.store(Work::held);
  const auto free_some = [&](std::size_t blocks) {
    for (; blocks != 0; --blocks) {
      free(live.back());
      live.pop_back();
    }
  };
  free_some(96);
  EXPECT_EQ(count(Counter::free_waits_pending_limit_total), 0u);
  free_some(64);
  EXPECT_GT(count(Counter::free_waits_pending_limit_total), 0u);
  EXPECT_LE(context_->ordering().epochs().pending_bytes(), (64u + 160 / 2) << 20);
  free_some(live.size());
  EXPECT_LE(context_->ordering().epochs().pending_bytes(), (64u + 512 / 2) << 20);
  expect_identity();
}

TEST_F(PendingTest, ALargeBlockWaitsForThoseBeforeItAndNotForItself) {
  start({{"CUPOOL_MAX_PENDING", "64M"}});
  gpu.work.store(Work::held);
  constexpr std::uint64_t kBytes = 80 << 20;
  free(allocate(kBytes));
  EXPECT_EQ(count(Counter::free_waits_pending_limit_total), 0u);
  EXPECT_EQ(context_->ordering().epochs().pending_bytes(), kBytes);
  free(allocate(kBytes));
  EXPECT_EQ(count(Counter::free_waits_pending_limit_total), 1u);
  EXPECT_EQ(context_->ordering().epochs().pending_bytes(), kBytes);
  expect_identity();
}

TEST_F(PendingTest, PhasesOfDifferentSizesDoNotGrowBeyondThePeak) {
  start({{"CUPOOL_MAX_PENDING", "32M"}});
  constexpr std::uint64_t kPhase = 1ull << 30;
  std::uint64_t blocks = 0;
  for (const std::uint64_t bytes : {1ull << 20, 4ull << 20, 512ull << 10, 6ull << 20, 2ull << 20}) {
    blocks = kPhase / bytes;
    std::vector<CUdeviceptr> live = allocate_several(static_cast<int>(blocks), bytes);
    in_thread([&] { free_all(live); });
  }
  allocator_->figures().fold();
  const auto held = static_cast<double>(context_->stats().value(Gauge::held_bytes).peak);
  const auto peak = static_cast<double>(context_->stats().value(Gauge::application_bytes).peak);
  EXPECT_LE(held, 1.15 * peak + (32 << 20) + (32 << 20))
      << "a step of the pool, and what is pending";
  expect_identity();
}

// What others submit after a free began may wait for this thread, which goes on after the free.
// Here it would stay pending for ever: no fence that covers it is waited for.
class LaterWorkTest : public PendingTest {
 protected:
  cuda::Driver make_driver() override {
    cuda::Driver driver = PendingTest::make_driver();
    driver.cuCtxRecordEvent = [](CUcontext context, CUevent event) {
      const CUresult result = test::fake::record(context, event);
      // Behind the fence of the free itself: the epoch that is open when the wait begins.
      if (std::exchange(frees_behind_next_fence, false)) free_elsewhere();
      return result;
    };
    driver.cuEventSynchronize = [](CUevent event) {
      if (last_before == 0) {
        last_before = gpu.recorded.load();
        free_elsewhere();
      }
      EXPECT_LE(reinterpret_cast<const test::fake::Event*>(event)->number.load(), last_before)
          << "it covers work that was submitted after the wait had begun";
      return test::fake::wait(event);
    };
    return driver;
  }
  // As much as keeps the wait waiting.
  static void free_elsewhere() { epochs->join(256 << 20, 1); }
  void free_until_a_wait() {
    gpu.work.store(Work::held);
    last_before = 0;
    epochs = &context_->ordering().epochs();
    for (int i = 0; count(Counter::free_waits_pending_limit_total) == 0; ++i) {
      ASSERT_LT(i, 10'000);
      frees_behind_next_fence = behind_fence && epochs->pending_bytes() > 60u << 20;
      free(allocate(1 << 20));
    }
    EXPECT_NE(last_before, 0u);
  }

  static inline Epochs* epochs = nullptr;
  static inline std::uint64_t last_before = 0;  ///< fence, when the wait began
  static inline bool frees_behind_next_fence = false;
  bool behind_fence = false;
};

TEST_F(LaterWorkTest, DoesNotHoldAFreeThatWaitsForThePendingBytes) {  // contract 2
  start({{"CUPOOL_MAX_PENDING", "64M"}});
  free_until_a_wait();
}

TEST_F(LaterWorkTest, NorWhereTheOpenEpochHasFreesOfOthers) {  // contract 2
  start({{"CUPOOL_MAX_PENDING", "64M"}});
  behind_fence = true;
  free_until_a_wait();
}

// The limit of `auto`, on a GPU whose work ends with the first wait of the host that sleeps, or
// goes on.
class FoundLimitTest : public PendingTest {
 protected:
  cuda::Driver make_driver() override {
    cuda::Driver driver = PendingTest::make_driver();
    driver.cuEventSynchronize = [](CUevent event) {
      if (runs_dry) gpu.work.store(Work::none);
      return test::fake::wait(event);
    };
    return driver;
  }
  void SetUp() override {
    runs_dry = false;
    PendingTest::SetUp();
  }
  std::uint64_t limit() const { return context_->device().budget().pending_limit(); }
  std::uint64_t waits() { return count(Counter::free_waits_pending_limit_total); }
  void free_until_a_wait(std::uint64_t bytes = 1 << 20) {
    gpu.work.store(Work::held);
    const std::uint64_t before = waits();
    for (int i = 0; waits() == before; ++i) {
      ASSERT_LT(i, 10'000);
      free(allocate(bytes));
    }
  }

  static inline bool runs_dry = false;
};

TEST_F(FoundLimitTest, StaysWhereTheGpuIsBusyAfterAWait) {
  std::uint64_t most = 0;
  for (int i = 0; i < 50; ++i) {
    free_until_a_wait();
    most = std::max(most, context_->ordering().epochs().pending_bytes());
  }
  EXPECT_EQ(limit(), 256u << 20);
  EXPECT_LE(most, 256u << 20);
  expect_identity();
}

TEST_F(FoundLimitTest, DoublesWhereTheGpuRunsDry) {
  runs_dry = true;
  free_until_a_wait();
  EXPECT_EQ(limit(), 256u << 20) << "the host may have stalled";
  free_until_a_wait();
  EXPECT_EQ(limit(), 512u << 20);
  for (int i = 0; i < 40; ++i) free_until_a_wait();
  EXPECT_EQ(limit(), context_->device().limits().max_pending);
  expect_identity();
}

// Nothing to wait for: the number of fences is that of a high limit.
TEST_F(FoundLimitTest, CostsNothingWhereTheGpuKeepsUp) {
  const auto fences_of = [&] {
    const std::uint64_t before = gpu.recorded.load();
    for (const std::uint64_t bytes : {4ull << 10, 256ull << 10, 1ull << 20, 4ull << 20}) {
      pairs(2000, bytes);
    }
    EXPECT_EQ(waits(), 0u);
    return gpu.recorded.load() - before;
  };
  const std::uint64_t found = fences_of();
  start({{"CUPOOL_MAX_PENDING", "2%"}});
  EXPECT_EQ(found, fences_of());
}

// So do threads together: 64 KiB are the largest blocks whose batches are full by their number.
TEST_F(FoundLimitTest, CostsThreadsNothingWhereTheGpuKeepsUp) {
  constexpr int kThreads = 8;
  for (const char* limit : {"2%", "auto"}) {
    SCOPED_TRACE(limit);
    start({{"CUPOOL_MAX_PENDING", limit}});
    std::vector<std::thread> threads;
    std::atomic<std::uint64_t> locks{0};
    for (int index = 0; index < kThreads; ++index) {
      threads.emplace_back([&] {
        pairs(20'000, 64 << 10);
        const std::uint64_t before = shared_locks_taken;
        pairs(20'000, 64 << 10);
        locks += shared_locks_taken - before;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_LE(locks.load() * 10, std::uint64_t{kThreads} * 20'000);
    expect_identity();
  }
}

TEST_F(FoundLimitTest, AWaitForTheWholeContextLeavesTheGpuDry) {
  driver_->cuCtxRecordEvent = nullptr;
  Ordering ordering(*driver_, test::fake::context(), context_->stats());
  ordering.epochs().join(1 << 20, 1);
  bool ran_dry = false;
  EXPECT_TRUE(ordering.wait_for_oldest(&ran_dry).complete());
  EXPECT_TRUE(ran_dry);
}

}  // namespace
}  // namespace cupool::engine
