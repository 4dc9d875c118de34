// SPDX-License-Identifier: Apache-2.0
// A thread's lists of cached blocks.
#include "engine/thread/idle_lists.h"

namespace cupool::engine {

// The search reads no block.
Block* IdleLists::pop_large(std::uint64_t capacity) {
  const auto offers = [this](std::size_t i) { return large_units_[i] * kLargeUnit; };
  std::size_t best = large_count_;
  for (std::size_t i = 0; i < large_count_; ++i) {
    const std::uint64_t offered = offers(i);
    if (offered == capacity) {
      best = i;
      break;
    }
    if (offered < capacity || offered > capacity + most_waste(capacity)) continue;
    if (best == large_count_ || offered < offers(best)) best = i;
  }
  if (best == large_count_) return nullptr;
  Block* block = large_[best];
  large_[best] = large_[--large_count_];
  large_units_[best] = large_units_[large_count_];
  bytes_ -= block->capacity;
  return block;
}

void IdleLists::cache(BlockList& blocks, std::uint64_t most_bytes) {
  if (blocks.empty()) return;
  if (!is_large(blocks.head->capacity) && bytes_ + blocks.bytes <= most_bytes) {
    return cache_chain(blocks);
  }
  BlockList rest;
  while (Block* block = blocks.pop()) {
    if (!cache_one(block, most_bytes)) rest.push(block);
  }
  blocks.splice(rest);
}

BlockList IdleLists::pop_all() {
  BlockList popped;
  const auto pop = [&popped](Block* block) {
    block->state.store(BlockState::cached, std::memory_order_relaxed);
    popped.push(block);
  };
  while (large_count_ != 0) pop(large_[--large_count_]);
  for (std::size_t index = 0; index < kSmallClasses; ++index) {
    while (Block* block = pop_small(index)) pop(block);
  }
  bytes_ = 0;
  requested_.reset();
  return popped;
}

}  // namespace cupool::engine
