// SPDX-License-Identifier: Apache-2.0
// A thread's cache in a context of its own, with an ordering whose epochs the test closes: what its
// tests share.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <set>
#include <vector>

#include "engine/context/context.h"
#include "engine/thread/thread_cache.h"
#include "engine_fake_driver.h"

namespace cupool::engine {

class ThreadCacheTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kSmall = 4096;
  static constexpr std::uint64_t kMiB = 1ull << 20;
  static constexpr std::uint64_t kMuch = 1ull << 40;
  using Guard = ThreadCache::Guard;
  using Blocks = std::vector<Block*>;

  // A context without pools or streams: it may be destroyed.
  struct Life {
    cuda::Driver driver = test::fake_driver();
    config::Settings settings = config::parse(nullptr, nullptr, nullptr);
    Device device{driver, 0, settings};
    Context context{driver, test::fake::context(), device};
    stats::DeviceStats stats;
    Ordering ordering{driver, test::fake::context(), stats};
    ThreadCache cache{context.threads().caches()};
  };

  ThreadCacheTest() {
    test::gpu.work.store(test::FakeGpu::Work::held);
    limit(512, kMuch, kMuch, kMuch);
    // The thread allocates blocks of these classes.
    for (const std::uint64_t bytes : {kAlignment, kSmall, 2 * kSmall}) cache_.idle.pop(bytes);
  }
  void limit(std::size_t blocks, std::uint64_t batch, std::uint64_t few, std::uint64_t cached) {
    ThreadCache::Limits limits;
    limits.blocks = blocks;
    limits.batch = batch;
    limits.few = few;
    limits.cached = cached;
    limits.tally = static_cast<std::int64_t>(kMuch);
    cache_.limits = limits;
    cache_.batch.renew(limits.blocks, limits.batch, limits.few);
  }

  Block* block(std::uint64_t capacity, bool of_pool = true) {
    Block& made = blocks_.emplace_back();
    made.capacity = capacity;
    made.requested = capacity;
    made.state.store(BlockState::freed);
    if (!is_large(capacity)) made.kind = kind_of_small(small_class(capacity), of_pool);
    return &made;
  }
  BlockList several(std::size_t count, std::uint64_t capacity) {
    BlockList list;
    for (std::size_t i = 0; i < count; ++i) list.push(block(capacity));
    return list;
  }
  // Returns those that it has no room for.
  BlockList cache(std::size_t count, std::uint64_t capacity) {
    BlockList blocks = several(count, capacity);
    cache_.idle.cache(blocks, cache_.limits.cached);
    return blocks;
  }
  static Blocks all_of(const BlockList& list) {
    Blocks found;
    std::uint64_t bytes = 0;
    for (Block* each = list.head; each != nullptr; each = each->next) {
      found.push_back(each);
      bytes += each->capacity;
    }
    EXPECT_EQ(found.size(), list.count);
    EXPECT_EQ(bytes, list.bytes);
    return found;
  }
  static std::set<Block*> set_of(const BlockList& list) {
    const Blocks all = all_of(list);
    return {all.begin(), all.end()};
  }
  Blocks pop_all(std::uint64_t capacity) {
    Blocks taken;
    while (Block* each = cache_.idle.pop(capacity)) taken.push_back(each);
    return taken;
  }
  // Frees blocks until the batch is due; how many.
  std::size_t free_until_due() {
    std::size_t freed = 1;
    while (!cache_.retire(block(kSmall))) ++freed;
    return freed;
  }
  // Frees these, and has them join an epoch, which is then closed.
  EpochNumber join_epoch(const Blocks& blocks) {
    for (Block* each : blocks) cache_.retire(each);
    cache_.flush(ordering_.epochs());
    const EpochNumber epoch = ordering_.newest();
    close_epoch();
    return epoch;
  }
  void close_epoch() { EXPECT_EQ(ordering_.close(), CUDA_SUCCESS); }
  static bool none(const Block&) { return false; }
  static bool all(const Block&) { return true; }
  BlockList reclaim(EpochNumber complete_up_to, bool (*unfit)(const Block&) = none) {
    BlockList surplus;
    cache_.reclaim(complete_up_to, false, &surplus, unfit);
    return surplus;
  }
  Life life_;
  Context& context_ = life_.context;
  Ordering& ordering_ = life_.ordering;
  ThreadCache& cache_ = life_.cache;
  std::deque<Block> blocks_;
};

}  // namespace cupool::engine
