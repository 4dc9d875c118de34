// SPDX-License-Identifier: Apache-2.0
// The hot path: an allocation from the calling thread's cache, and a free into its batch.
// Straight-line code without calls, inlined into the hooks. The uncommon case returns without side
// effects; the caller takes the slow path.
#pragma once

#include <optional>

#include "engine/block/accounting.h"
#include "engine/context/thread_order.h"
#include "engine/reclaim/lane.h"
#include "engine/serve/allocator.h"

namespace cupool::engine {

/// Allocates from the calling thread's cache in `context`, its current one. 0: no side effect.
[[gnu::always_inline]] inline CUdeviceptr allocate_hot(Context& context, std::uint64_t bytes) {
  ThreadCache* const cache = last_thread_cache(context);
  if (cache == nullptr || is_timed_next() || !context.usable() || bytes > context.max_block() ||
      !Serving::open() || !cache->try_lock()) {
    return 0;
  }
  Block* const block = cache->pop_hot(bytes);
  const CUdeviceptr address = block == nullptr ? 0 : hand_over(*block, bytes);
  cache->unlock();
  if (address != 0) count_untimed();
  return address;
}

/// Whether the lane covers a free of this block without a mark.
[[gnu::always_inline]] inline bool in_lane(const Block& block) {
  return Lane::covers_free_at_once() && block.source == BlockSource::pool &&
         !block.shared_outside.load(std::memory_order_relaxed);
}

/// Frees a live block into the calling thread's batch if it has room. `std::nullopt`: no side
/// effect.
[[gnu::always_inline]] inline std::optional<CUresult> free_hot(Allocator& allocator,
                                                               CUdeviceptr address) {
  Block* const block = allocator.blocks().find_at_once(address);
  if (block == nullptr || !Serving::open()) return std::nullopt;
  const std::uint64_t word = block->state.word();
  if (block->address != address || block->source == BlockSource::passed_through ||
      BlockStateCell::state_of(word) != BlockState::live) {
    return std::nullopt;
  }
  Context& context = *block->context;
  ThreadCache* const cache = last_thread_cache(context);
  const std::uint64_t requested = block->requested;
  const std::uint64_t capacity = block->capacity;
  const bool in_lane_now = Lane::is_open();
  if (cache == nullptr || is_timed_next() || !context.usable() ||
      (!in_lane_now && ThreadOrder::has_work()) || !allocator.policy().waits_for_nothing(context) ||
      !block->state.claim(word)) {
    return std::nullopt;
  }
  const ClaimedBlock claimed{block, &context, detail::last_cache.incarnation, requested, capacity};
  if (cache->try_lock()) {
    bool retired = false;
    if (!claimed.is_alive()) {
      // Its context has ended.
    } else if (!in_lane_now) {
      retired = cache->retire_hot(block);
    } else if (in_lane(*block)) {
      retired = cache->retire_hot(block, context.ordering().epochs().open());
    }
    cache->unlock();
    if (retired) {
      count_untimed();
      return CUDA_SUCCESS;
    }
  }
  return allocator.frees().free_claimed_otherwise(claimed);
}

}  // namespace cupool::engine
