// The lists behind BlockCache.
#include "core/block_cache.h"

namespace cupool::core {
namespace {

// Idle small blocks below this total stay when the driver has to grow: one growth step of a driver
// pool (docs/measurements), so that giving them back could not have saved a step.
constexpr std::uint64_t kSmallIdleAllowance = 32ull << 20;

}  // namespace

Block* BlockCache::take(std::uint64_t capacity) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!is_large(capacity)) {
    Block* block = small_[small_class(capacity)].pop();
    if (block != nullptr) small_bytes_ -= block->capacity;
    return block;
  }
  const auto best = large_.lower_bound(capacity);
  if (best == large_.end() || best->first > capacity + most_waste(capacity)) return nullptr;
  Block* block = best->second;
  large_.erase(best);
  large_bytes_ -= block->capacity;
  return block;
}

BlockList BlockCache::take_more(std::uint64_t capacity, std::size_t most) {
  BlockList taken;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_large(capacity)) {
    while (taken.count < most) {
      const auto same = large_.find(capacity);
      if (same == large_.end()) break;
      evict_large(same, &taken);
    }
    return taken;
  }
  BlockList& list = small_[small_class(capacity)];
  while (taken.count < most) {
    Block* block = list.pop();
    if (block == nullptr) break;
    small_bytes_ -= block->capacity;
    taken.push(block);
  }
  return taken;
}

void BlockCache::put(BlockList& quiet) {
  const std::lock_guard<std::mutex> lock(mutex_);
  while (Block* block = quiet.pop()) {
    if (is_large(block->capacity)) {
      large_.emplace(block->capacity, block);
      large_bytes_ += block->capacity;
    } else {
      small_[small_class(block->capacity)].push(block);
      small_bytes_ += block->capacity;
    }
  }
}

BlockList BlockCache::evict_for(std::uint64_t capacity) {
  BlockList evicted;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!is_large(capacity)) {
    if (small_bytes_ > kSmallIdleAllowance) evict_small(small_bytes_ / 2, &evicted);
    return evicted;
  }
  const auto fitting = large_.lower_bound(capacity);
  if (fitting != large_.end()) {
    evict_large(fitting, &evicted);
    return evicted;
  }
  while (evicted.bytes < capacity && !large_.empty()) {
    evict_large(std::prev(large_.end()), &evicted);
  }
  return evicted;
}

BlockList BlockCache::evict_to(std::uint64_t keep_bytes) {
  BlockList evicted;
  const std::lock_guard<std::mutex> lock(mutex_);
  while (small_bytes_ + large_bytes_ > keep_bytes && !large_.empty()) {
    evict_large(std::prev(large_.end()), &evicted);
  }
  if (small_bytes_ + large_bytes_ > keep_bytes) evict_small(keep_bytes, &evicted);
  return evicted;
}

std::uint64_t BlockCache::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return small_bytes_ + large_bytes_;
}

void BlockCache::evict_large(LargeBlocks::iterator which, BlockList* evicted) {
  large_bytes_ -= which->second->capacity;
  evicted->push(which->second);
  large_.erase(which);
}

void BlockCache::evict_small(std::uint64_t target_bytes, BlockList* evicted) {
  for (std::size_t index = kSmallClasses; index-- > 0 && small_bytes_ > target_bytes;) {
    while (small_bytes_ > target_bytes) {
      Block* block = small_[index].pop();
      if (block == nullptr) break;
      small_bytes_ -= block->capacity;
      evicted->push(block);
    }
  }
}

}  // namespace cupool::core
