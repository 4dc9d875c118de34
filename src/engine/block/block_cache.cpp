// SPDX-License-Identifier: Apache-2.0
// The lists behind BlockCache.
#include "engine/block/block_cache.h"

#include <algorithm>
#include <iterator>
#include <new>

#include "stats/pool_growth.h"

namespace cupool::engine {
namespace {

// Idle small blocks up to this total stay when fresh memory is needed. It is one growth step of a
// driver pool (docs/measurements), so releasing them could not save a step.
constexpr std::uint64_t kSmallIdleAllowance = stats::kPoolGrowthStep;

}  // namespace

Block* BlockCache::pop(std::uint64_t capacity, std::size_t most, std::uint64_t most_bytes,
                       BlockList* more) {
  if (!may_have(capacity)) return nullptr;
  if (!is_large(capacity)) {
    const std::size_t index = small_class(capacity);
    const auto room = static_cast<std::size_t>(most_bytes / capacity);
    BlockList popped;
    {
      const std::lock_guard lock(mutex_);
      pop_small(index, std::clamp<std::size_t>(room, 1, most + 1), &popped);
    }
    Block* block = popped.pop();
    more->splice(popped);
    return block;
  }
  const std::lock_guard lock(mutex_);
  const auto best = large_.lower_bound(capacity);
  if (best == large_.end() || best->first > capacity + most_waste(capacity)) return nullptr;
  const std::uint64_t found = best->first;
  Block* block = pop_large(best);
  while (more->count < most && more->bytes + found <= most_bytes) {
    const auto same = large_.find(found);
    if (same == large_.end()) break;
    more->push(pop_large(same));
  }
  return block;
}

inline void BlockCache::note(std::size_t count, Fewest& fewest) const {
  fewest[decay_step_] = std::min(fewest[decay_step_], static_cast<std::uint32_t>(count));
}

void BlockCache::pop_small(std::size_t index, std::size_t most, BlockList* popped) {
  if (small_ == nullptr) return;
  ChainList& small = (*small_)[index];
  small.pop(most, popped);
  if (small_fewest_ != nullptr) note(small.count(), (*small_fewest_)[index]);
  small_bytes_ = small_bytes_ - popped->bytes;
  if (small.empty()) has_small_[index].store(false, std::memory_order_relaxed);
}

Block* BlockCache::pop_small(std::size_t index) {
  BlockList one;
  pop_small(index, 1, &one);
  return one.pop();
}

Block* BlockCache::pop_large(LargeBlocks::iterator which) {
  Block* block = which->second.blocks.pop();
  note(which->second.blocks.count, which->second.fewest);
  large_bytes_ = large_bytes_ - block->capacity;
  if (which->second.blocks.empty()) large_.erase(which);
  return block;
}

void BlockCache::cache(BlockList& blocks) {
  if (has_unlisted_.load(std::memory_order_relaxed)) {
    const std::lock_guard lock(mutex_);
    has_unlisted_.store(false, std::memory_order_relaxed);
    blocks.splice(unlisted_);
  }
  ChainList chains;
  BlockList large;
  while (!blocks.empty()) {
    const std::uint64_t capacity = blocks.head->capacity;
    if (is_large(capacity)) {
      large.push(blocks.pop());
      continue;
    }
    BlockList chain;
    do {
      chain.push(blocks.pop());
    } while (!blocks.empty() && blocks.head->capacity == capacity && chain.count < kLongestChain &&
             chain.bytes + capacity <= kMostChainBytes);
    chains.push(chain);
  }
  const std::lock_guard lock(mutex_);
  if (!chains.empty() && small_ == nullptr) {
    small_.reset(new (std::nothrow) std::array<ChainList, kSmallClasses>());
  }
  while (!chains.empty()) {
    BlockList chain = chains.pop();
    if (small_ == nullptr) {
      leave_unlisted(chain);
      continue;
    }
    const std::size_t index = small_class(chain.head->capacity);
    small_bytes_ = small_bytes_ + chain.bytes;
    (*small_)[index].push(chain);
    has_small_[index].store(true, std::memory_order_relaxed);
  }
  try {
    while (!large.empty()) {
      BlockList& list = large_[large.head->capacity].blocks;
      large_bytes_ = large_bytes_ + large.head->capacity;
      list.push(large.pop());
    }
  } catch (const std::bad_alloc&) {
    leave_unlisted(large);
  }
}

void BlockCache::leave_unlisted(BlockList& blocks) {
  unlisted_.splice(blocks);
  has_unlisted_.store(true, std::memory_order_relaxed);
}

BlockList BlockCache::evict_for(std::uint64_t capacity) {
  BlockList evicted;
  const std::lock_guard lock(mutex_);
  const auto fitting = large_.lower_bound(capacity);
  if (is_large(capacity) && fitting != large_.end()) {
    evicted.push(pop_large(fitting));
    return evicted;
  }
  // Blocks of the other kind go by halves, since the program has changed its sizes.
  if (is_large(capacity)) {
    while (evicted.bytes < capacity && !large_.empty()) evict_largest(&evicted);
    if (evicted.bytes < capacity) evict_half_of_small(&evicted);
  } else {
    evict_half_of_small(&evicted);
    const std::uint64_t rest = evicted.empty() ? large_bytes_ / 2 : large_bytes_;
    while (large_bytes_ > rest) evict_largest(&evicted);
  }
  return evicted;
}

// What no list had place for goes first.
BlockList BlockCache::evict_to(std::uint64_t keep_bytes) {
  BlockList evicted;
  const std::lock_guard lock(mutex_);
  has_unlisted_.store(false, std::memory_order_relaxed);
  evicted.splice(unlisted_);
  while (small_bytes_ + large_bytes_ > keep_bytes && !large_.empty()) evict_largest(&evicted);
  if (small_bytes_ + large_bytes_ > keep_bytes) evict_small(keep_bytes, &evicted);
  return evicted;
}

void BlockCache::abandon() {
  const std::lock_guard lock(mutex_);
  for (std::atomic<bool>& has : has_small_) has.store(false, std::memory_order_relaxed);
  small_.reset();
  small_fewest_.reset();
  large_.clear();
  unlisted_ = BlockList{};
  small_bytes_ = 0;
  large_bytes_ = 0;
}

void BlockCache::evict_half_of_small(BlockList* evicted) {
  if (small_bytes_ > kSmallIdleAllowance) evict_small(small_bytes_ / 2, evicted);
}

void BlockCache::evict_small(std::uint64_t target_bytes, BlockList* evicted) {
  for (std::size_t index = kSmallClasses; index-- > 0 && small_bytes_ > target_bytes;) {
    while (small_bytes_ > target_bytes) {
      Block* block = pop_small(index);
      if (block == nullptr) break;
      evicted->push(block);
    }
  }
}

void BlockCache::end_decay_step() {
  const std::lock_guard lock(mutex_);
  if (small_fewest_ == nullptr) {
    small_fewest_.reset(new (std::nothrow) std::array<Fewest, kSmallClasses>{});
  }
  decay_step_ = (decay_step_ + 1) % kDecaySteps;
  const auto begin = [this](std::size_t count, Fewest& fewest) {
    fewest[decay_step_] = static_cast<std::uint32_t>(count);
  };
  for (std::size_t index = 0; small_fewest_ != nullptr && index < kSmallClasses; ++index) {
    begin(small_ == nullptr ? 0 : (*small_)[index].count(), (*small_fewest_)[index]);
  }
  for (auto& large : large_) begin(large.second.blocks.count, large.second.fewest);
}

std::size_t BlockCache::unneeded(const Fewest& fewest) {
  return *std::min_element(fewest.begin(), fewest.end());
}

// `count` unneeded blocks were popped: subtracts them from the counts of all steps.
void BlockCache::forget(Fewest& fewest, std::size_t count) {
  const auto gone = static_cast<std::uint32_t>(count);
  for (std::uint32_t& each : fewest) each -= std::min(each, gone);
}

BlockList BlockCache::evict_unneeded(std::uint64_t most_bytes) {
  BlockList evicted;
  const std::lock_guard lock(mutex_);
  for (auto next = large_.begin(); next != large_.end() && evicted.bytes < most_bytes;) {
    const auto which = next++;
    std::size_t count = unneeded(which->second.fewest);
    const auto room = static_cast<std::size_t>((most_bytes - evicted.bytes) / which->first + 1);
    count = std::min(count, room);
    forget(which->second.fewest, count);
    for (; count != 0; --count) evicted.push(pop_large(which));
  }
  if (small_fewest_ == nullptr) return evicted;
  for (std::size_t index = 0; index < kSmallClasses && evicted.bytes < most_bytes; ++index) {
    Fewest& fewest = (*small_fewest_)[index];
    for (std::size_t count = unneeded(fewest); count != 0 && evicted.bytes < most_bytes; --count) {
      forget(fewest, 1);
      evicted.push(pop_small(index));
    }
  }
  return evicted;
}

}  // namespace cupool::engine
