// SPDX-License-Identifier: Apache-2.0
// Blocks with a heap that gives nothing: none is lost between two lists, whatever a thread or a
// context leaves, and what cannot be recorded is the driver's (fail open).
#include <atomic>
#include <chrono>
#include <thread>

#include "empty_heap.h"
#include "engine/serve/async_blocks.h"
#include "engine_async_fixture.h"

namespace cupool::engine {
namespace {

class ServeShortHeapTest : public FastPathTest {
 protected:
  static constexpr std::uint64_t kBytes = 4096;

  // As an end of the context by the driver.
  void end_context() {
    const auto destroy = [] { return CUDA_SUCCESS; };
    EXPECT_EQ(allocator_->endings().destroy(context_->handle(), destroy), CUDA_SUCCESS);
  }
  void expect_nothing_held() {
    for (const Gauge gauge : {Gauge::application_bytes, Gauge::rounding_bytes, Gauge::retired_bytes,
                              Gauge::cached_bytes, Gauge::held_bytes, Gauge::passthrough_bytes}) {
      EXPECT_EQ(context_->stats().value(gauge).current, 0);
    }
  }
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
TEST_F(ServeShortHeapTest, BatchesOfManyEpochsAreDrainedAndNoneIsReusedTooEarly) {  // I1
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

TEST_F(ServeShortHeapTest, AContextThatEndsLeavesNothing) {  // I8
  const std::vector<CUdeviceptr> live = allocate_several(100, kBytes);
  pairs(20, kBytes);
  Patience patience;
  CUdeviceptr passed = 0x7500000000;
  EXPECT_EQ(allocator_->pass_through().allocate(
                kBytes, [&] { return kBytes; }, &passed, patience, [] { return CUDA_SUCCESS; }),
            CUDA_SUCCESS);
  {
    const test::EmptyHeap none;
    end_context();
  }
  expect_nothing_held();
  for (const CUdeviceptr address : live) EXPECT_EQ(allocator_->blocks().find(address), nullptr);
  EXPECT_EQ(allocator_->blocks().find(passed), nullptr);
}

// The table of blocks has to grow for the 2,049th.
TEST_F(ServeShortHeapTest, FreshMemoryWithoutARecordGoesBack) {
  allocate_several(2048, kBytes);
  const std::int64_t held = now(Gauge::held_bytes);
  const std::uint64_t frees = gpu.frees.load();
  CUdeviceptr address = 0;
  {
    const test::EmptyHeap none;
    Patience patience;
    EXPECT_EQ(allocator_->allocations().try_allocate(kBytes, &address, patience), std::nullopt)
        << "the driver serves";
  }
  EXPECT_EQ(address, 0u);
  EXPECT_EQ(gpu.frees.load(), frees + 1);
  EXPECT_EQ(now(Gauge::held_bytes), held);
  EXPECT_NE(allocate(kBytes), 0u) << "with memory again it grows";
}

// Pools outlive contexts, and their memory has to.
class PoolShortHeapTest : public PoolEngineTest {
 protected:
  void TearDown() override {
    test::pools->free_result = CUDA_SUCCESS;
    PoolEngineTest::TearDown();
  }
};

TEST_F(PoolShortHeapTest, WhatOutlivesItsContextGoesBackInTheNextOne) {  // contract 10
  const std::vector<CUdeviceptr> blocks = allocate_several(10, kUnit);
  {
    const test::EmptyHeap none;
    allocator_->endings().context_gone(*context_);
  }
  for (const CUdeviceptr each : blocks) {
    EXPECT_TRUE(context_->device().orphans().contains(each));
    EXPECT_NE(test::pools->pool_of(each), nullptr);
  }
  const test::EmptyHeap none;
  EXPECT_EQ(allocator_->registry().current(), context_) << "in its next life";
  for (const CUdeviceptr each : blocks) {
    EXPECT_FALSE(context_->device().orphans().contains(each));
    EXPECT_EQ(test::pools->pool_of(each), nullptr);
  }
}

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

class AsyncShortHeapTest : public AsyncMemoryTest {};

TEST_F(AsyncShortHeapTest, WhatAContextLeavesGoesBackInTheNextOne) {  // I8
  CUdeviceptr live = 0;
  EXPECT_EQ(allocate_in_stream(kUnit, &live), AsyncMemory::Served::by_driver);
  const CUdeviceptr idle = leave_idle(kUnit);
  const test::EmptyHeap none;
  allocator_->endings().context_gone(*context_);
  EXPECT_EQ(async().blocks().find(idle), nullptr);
  EXPECT_EQ(async().blocks().find(live), nullptr);
  EXPECT_EQ(async().blocks().bytes(), 0u);
  EXPECT_TRUE(context_->device().orphans().contains(idle));
  EXPECT_FALSE(context_->device().orphans().contains(live)) << "it is the program's";
}

// The table of blocks has to grow for the 2,049th.
TEST_F(AsyncShortHeapTest, MemoryWithoutARecordIsTheDrivers) {
  static AsyncBlocks& blocks = *new AsyncBlocks;  // never destroyed, as that of the process
  const auto adopt = [&](CUdeviceptr number) {
    blocks.adopt(*context_, context_->incarnation(), kFirstAddress + number * kUnit, kUnit, kUnit);
  };
  for (CUdeviceptr number = 0; number < 2048; ++number) adopt(number);
  {
    const test::EmptyHeap none;
    adopt(2048);
  }
  EXPECT_EQ(blocks.bytes(), 2048 * kUnit);
  EXPECT_EQ(blocks.find(kFirstAddress + 2048 * kUnit), nullptr);
  EXPECT_EQ(blocks.free_by_driver(kFirstAddress + 2048 * kUnit, [] { return CUDA_SUCCESS; }),
            CUDA_SUCCESS);
}

}  // namespace
}  // namespace cupool::engine
