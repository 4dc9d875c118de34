// The hot path: an allocation that the calling thread's own list can serve, and a free that its
// batch takes. Straight lines without a call, for the hooks to have inlined; whatever is not as it
// mostly is they leave to Allocator's other functions, with nothing done.
#pragma once

#include <optional>

#include "core/accounting.h"
#include "core/allocator.h"

namespace cupool::core {

// `context` is current. Null: nothing has happened. The block is the program's otherwise.
[[gnu::always_inline]] inline Block* Allocator::take_hot(Context& context, std::uint64_t bytes) {
  ThreadCache* const cache = last_thread_cache(context);
  if (cache == nullptr || is_timed_next() || !context.usable() || bytes > context.max_block() ||
      !serving_.load(std::memory_order_relaxed) || !cache->try_lock()) {
    return nullptr;
  }
  Block* const block = cache->take_hot(bytes);
  cache->unlock();
  if (block == nullptr) return nullptr;
  count_untimed();
  block->requested = bytes;
  block->state.store(BlockState::live, std::memory_order_release);
  return block;
}

// Nothing: nothing has happened.
[[gnu::always_inline]] inline std::optional<CUresult> Allocator::free_hot(CUdeviceptr address) {
  Block* const block = blocks_.find_at_once(address);
  if (block == nullptr) return std::nullopt;
  const std::uint64_t word = block->state.word();
  if (block->address != address || block->source == BlockSource::passed_through ||
      BlockStateCell::state_of(word) != BlockState::live) {
    return std::nullopt;
  }
  Context& context = *block->context;
  ThreadCache* const cache = last_thread_cache(context);
  if (cache == nullptr || is_timed_next() || !context.usable() || may_wait(context) ||
      !block->state.claim(word)) {
    return std::nullopt;
  }
  if (cache->try_lock()) {
    const bool retired = cache->retire_hot(block);
    cache->unlock();
    if (retired) {
      count_untimed();
      return CUDA_SUCCESS;
    }
  }
  return free_claimed_otherwise(*block);
}

}  // namespace cupool::core
