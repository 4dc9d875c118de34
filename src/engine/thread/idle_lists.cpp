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
  const std::uint64_t capacity = blocks.head->capacity;
  if (!is_large(capacity)) {
    SmallList& small = small_[small_class(capacity)];
    small.only_freed = 0;
    if (bytes_ + blocks.bytes <= most_bytes) return cache_chain(small, blocks);
  }
  BlockList rest;
  while (Block* block = blocks.pop()) {
    if (!cache_one(block, most_bytes)) rest.push(block);
  }
  blocks.splice(rest);
}

// Gives up blocks of classes that this thread frees and other threads allocate. If a class had
// blocks to spare for a whole period, half of these go to the shared cache. If the thread took none
// of a class in the period, all of its blocks go, and so do later ones.
void IdleLists::shed(BlockList* surplus, std::int64_t* reclaimed) {
  batches_ = 0;
  for (std::size_t index = 0; index < kSmallClasses; ++index) {
    SmallList& small = small_[index];
    const bool only_freed = small.popped_from == 0 && small.count != 0;
    std::uint32_t idle = only_freed ? small.count : (small.fewest + 1) / 2;
    for (; idle != 0; --idle) {
      Block* block = pop_small(index);
      *reclaimed -= static_cast<std::int64_t>(block->capacity);
      surplus->push(block);
    }
    small.fewest = small.count;
    small.popped_from = 0;
    if (only_freed) small.only_freed = 1;
  }
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
  return popped;
}

}  // namespace cupool::engine
