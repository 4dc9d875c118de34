// The lists behind BlockCache.
#include "core/block_cache.h"

namespace cupool::core {
namespace {

// Idle small blocks below this total stay when the driver has to grow: one growth step of a driver
// pool (docs/measurements), so that giving them back could not have saved a step.
constexpr std::uint64_t kSmallIdleAllowance = 32ull << 20;

}  // namespace

Block* BlockCache::take(std::uint64_t capacity, std::size_t most, std::uint64_t most_bytes,
                        BlockList* more) {
  if (!may_have(capacity)) return nullptr;
  const std::lock_guard<SharedMutex> lock(mutex_);
  if (!is_large(capacity)) {
    const std::size_t index = small_class(capacity);
    Block* block = pop_small(index);
    while (more->count < most && more->bytes + capacity <= most_bytes) {
      Block* further = pop_small(index);
      if (further == nullptr) break;
      more->push(further);
    }
    return block;
  }
  const auto best = large_.lower_bound(capacity);
  if (best == large_.end() || best->first > capacity + most_waste(capacity)) return nullptr;
  BlockList taken;
  const std::uint64_t found = best->first;
  evict_large(best, &taken);
  while (more->count < most && more->bytes + found <= most_bytes) {
    const auto same = large_.find(found);
    if (same == large_.end()) break;
    evict_large(same, more);
  }
  return taken.pop();
}

Block* BlockCache::pop_small(std::size_t index) {
  Block* block = small_[index].pop();
  if (block == nullptr) return nullptr;
  small_bytes_ = small_bytes_ - block->capacity;
  if (small_[index].empty()) has_small_[index].store(false, std::memory_order_relaxed);
  return block;
}

void BlockCache::put(BlockList& quiet) {
  const std::lock_guard<SharedMutex> lock(mutex_);
  while (Block* block = quiet.pop()) {
    if (is_large(block->capacity)) {
      large_.emplace(block->capacity, block);
      large_bytes_ = large_bytes_ + block->capacity;
    } else {
      const std::size_t index = small_class(block->capacity);
      small_[index].push(block);
      small_bytes_ = small_bytes_ + block->capacity;
      has_small_[index].store(true, std::memory_order_relaxed);
    }
  }
}

BlockList BlockCache::evict_for(std::uint64_t capacity) {
  BlockList evicted;
  const std::lock_guard<SharedMutex> lock(mutex_);
  const auto fitting = large_.lower_bound(capacity);
  if (is_large(capacity) && fitting != large_.end()) {
    evict_large(fitting, &evicted);
    return evicted;
  }
  // Those of the other kind go by halves: the program has changed its sizes.
  if (is_large(capacity)) {
    while (evicted.bytes < capacity && !large_.empty()) {
      evict_large(std::prev(large_.end()), &evicted);
    }
    if (evicted.bytes < capacity) evict_half_of_small(&evicted);
  } else {
    evict_half_of_small(&evicted);
    const std::uint64_t rest = evicted.empty() ? large_bytes_ / 2 : large_bytes_;
    while (large_bytes_ > rest) evict_large(std::prev(large_.end()), &evicted);
  }
  return evicted;
}

BlockList BlockCache::evict_to(std::uint64_t keep_bytes) {
  BlockList evicted;
  const std::lock_guard<SharedMutex> lock(mutex_);
  while (small_bytes_ + large_bytes_ > keep_bytes && !large_.empty()) {
    evict_large(std::prev(large_.end()), &evicted);
  }
  if (small_bytes_ + large_bytes_ > keep_bytes) evict_small(keep_bytes, &evicted);
  return evicted;
}

void BlockCache::evict_large(LargeBlocks::iterator which, BlockList* evicted) {
  large_bytes_ = large_bytes_ - which->second->capacity;
  evicted->push(which->second);
  large_.erase(which);
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

}  // namespace cupool::core
