// SPDX-License-Identifier: Apache-2.0
// Blocks with a heap that gives nothing: none is lost between two lists,
// whatever a thread or a context leaves, and what cannot be recorded is the
// driver's (fail open).
#include <atomic>
#include <chrono>
#include <thread>

#include "empty_heap.h"
#include "engine_pool_engine_fixture.h"

namespace cupool::engine {
namespace {

class ServeShortHeapTest : public FastPathTest {
 protected:
  static constexpr std::uint64_t kBytes = 4096;
};

TEST_F(ServeShortHeapTest, WhatAThreadHasRetiredIsDrained) {  // I1
  gpu.work.store(Work::held);
  free_all(allocate_several(20, kBytes));
  {
    const test::EmptyHeap none;
    context_->threads().drain(Drain::retired);
  }
  BlockList reclaimed;
  EXPECT_EQ(context_->ordering().poll(Ordering::Poll::all, &reclaimed), CUDA_SUCCESS);
  EXPECT_TRUE(reclaimed.empty()) << "the GPU uses it";
  gpu.finish();
  EXPECT_EQ(context_->ordering().poll(Ordering::Poll::all, &reclaimed), CUDA_SUCCESS);
  EXPECT_EQ(reclaimed.count, 20u);
}

// More epochs than a draining thread has places for.
TEST_F(ServeShortHeapTest,
       BatchesOfManyEpochsAreDrainedAndNoneIsReusedTooEarly) {  // I1
  constexpr std::size_t kThreads = 4;
  gpu.work.store(Work::held);
  const std::vector<CUdeviceptr> blocks =
      allocate_several(kThreads * BatchesInFlight::kMost, kBytes);
  std::atomic<std::size_t> freed{0};
  std::atomic<bool> drained{false};
  std::vector<std::thread> threads;
  for (std::size_t number = 0; number < kThreads; ++number) {
    threads.emplace_back([&, number] {
      while (freed.load() != number) std::this_thread::yield();
      for (std::size_t i = 0; i < BatchesInFlight::kMost; ++i) {
        free(blocks[number * BatchesInFlight::kMost + i]);
        context_->threads().drain(*thread_cache(*context_), Drain::flush);
        EXPECT_EQ(context_->ordering().close(), CUDA_SUCCESS);
      }
      freed.store(number + 1);
      while (!drained.load()) std::this_thread::yield();
    });
  }
  while (freed.load() != kThreads) std::this_thread::yield();
  {
    const test::EmptyHeap none;
    context_->threads().drain(Drain::all);
  }
  drained.store(true);
  for (std::thread& thread : threads) thread.join();
  BlockList reclaimed;
  EXPECT_EQ(context_->ordering().poll(Ordering::Poll::all, &reclaimed), CUDA_SUCCESS);
  EXPECT_TRUE(reclaimed.empty()) << "the GPU uses all";
  gpu.completed.store(gpu.recorded.load() - 1);  // all but the newest epoch
  EXPECT_EQ(context_->ordering().poll(Ordering::Poll::closed, &reclaimed), CUDA_SUCCESS);
  EXPECT_LT(reclaimed.count, blocks.size());
  gpu.finish();
  BlockList rest;
  EXPECT_EQ(context_->ordering().poll(Ordering::Poll::all, &rest), CUDA_SUCCESS);
  EXPECT_EQ(reclaimed.count + rest.count, blocks.size());
}

// An exception in the destructor of a thread's data ends the process.
TEST_F(ServeShortHeapTest, AThreadThatEndsLeavesItsBlocks) {
  gpu.work.store(Work::held);
  in_thread([&] {
    free_all(allocate_several(20, kBytes));
    test::heap_is_empty = true;  // for good
  });
  gpu.work.store(Work::none);
  EXPECT_EQ(now(Gauge::retired_bytes), 20 * std::int64_t{kBytes});
  BlockList reclaimed;
  EXPECT_EQ(context_->ordering().poll(Ordering::Poll::all, &reclaimed), CUDA_SUCCESS);
  EXPECT_EQ(reclaimed.count, 20u);
}

// Its lists are made with the first blocks of their kind.
TEST_F(ServeShortHeapTest, WhatTheCacheCannotListIsGivenBack) {
  BlockCache cache;
  Block small;
  Block large;
  small.capacity = kAlignment;
  large.capacity = kLargeUnit;
  BlockList blocks;
  blocks.push(&small);
  blocks.push(&large);
  {
    const test::EmptyHeap none;
    cache.cache(blocks);
  }
  EXPECT_EQ(cache.pop(kAlignment), nullptr);
  EXPECT_EQ(cache.evict_to(0).count, 2u);
  EXPECT_TRUE(cache.evict_to(0).empty());
}

// Pools outlive contexts, and their memory has to.
class PoolShortHeapTest : public PoolEngineTest {
 protected:
  void TearDown() override {
    test::pools->free_result = CUDA_SUCCESS;
    PoolEngineTest::TearDown();
  }
};

TEST_F(PoolShortHeapTest, WhatThePoolRefusesIsTriedAgainLater) {
  const std::vector<CUdeviceptr> blocks = allocate_several(10, kUnit);
  free_all(blocks);
  test::pools->free_result = CUDA_ERROR_UNKNOWN;
  Patience patience(0);
  const test::EmptyHeap none;
  allocator_->out_of_memory().give_back_idle(*context_, patience);
  for (const CUdeviceptr each : blocks) {
    EXPECT_TRUE(context_->device().orphans().contains(each));
  }
  test::pools->free_result = CUDA_SUCCESS;
  context_->device().orphans().release(*driver_, *context_, context_->device().pools());
  for (const CUdeviceptr each : blocks) EXPECT_EQ(test::pools->pool_of(each), nullptr);
}

TEST_F(PoolShortHeapTest, AThreadHasAStream) {
  CUstream stream = nullptr;
  context_->streams().clear();
  in_thread([&] {
    const test::EmptyHeap none;
    EXPECT_EQ(context_->thread_stream(&stream), CUDA_SUCCESS);
  });
  EXPECT_NE(stream, nullptr);
  EXPECT_EQ(context_->streams().all().size(), 1u);
}

}  // namespace
}  // namespace cupool::engine
