// The lists of a thread.
#include "core/thread_cache.h"

#include <sched.h>

#include <algorithm>

#include "core/accounting.h"

namespace cupool::core {

using stats::Counter;
using stats::Gauge;

void Tally::fold(stats::DeviceStats& stats) {
  if (mallocs != 0) {
    stats.add(Counter::malloc_calls_total, mallocs);
    stats.add(Counter::malloc_requested_bytes_total, malloc_bytes);
    stats.add(Counter::served_thread_cache_total, mallocs);
  }
  if (frees != 0) {
    stats.add(Counter::free_calls_total, frees);
    stats.add(Counter::free_bytes_total, free_bytes);
  }
  // By way of the highest value, so that a peak between two folds is seen.
  for (const Gauge gauge : {Gauge::application_bytes, Gauge::device_bytes}) {
    if (application_high > 0) stats.gauge_add(gauge, application_high);
    const std::int64_t rest = application - std::max<std::int64_t>(application_high, 0);
    if (rest != 0) stats.gauge_add(gauge, rest);
  }
  if (rounding != 0) stats.gauge_add(Gauge::rounding_bytes, rounding);
  if (cached != 0) stats.gauge_add(Gauge::cached_bytes, cached);
  if (retired != 0) stats.gauge_add(Gauge::retired_bytes, retired);
  sizes.fold(stats.requested_sizes());
  if (owner != nullptr && mallocs != 0) owner->add_mallocs(mallocs, malloc_bytes);
  if (owner != nullptr && frees != 0) owner->add_frees(frees);
  static_cast<TallyFigures&>(*this) = TallyFigures{};
}

Block* ThreadCache::take(std::uint64_t capacity) {
  Block* block = nullptr;
  if (is_large(capacity)) {
    Block** best = nullptr;
    for (Block*& slot : large_) {
      if (slot == nullptr || slot->capacity < capacity) continue;
      if (slot->capacity > capacity + most_waste(capacity)) continue;
      if (best == nullptr || slot->capacity < (*best)->capacity) best = &slot;
    }
    if (best == nullptr) return nullptr;
    block = *best;
    *best = nullptr;
  } else {
    block = small_[small_class(capacity)].pop();
    if (block == nullptr) return nullptr;
  }
  quiet_bytes_ -= block->capacity;
  return block;
}

void ThreadCache::keep(BlockList& quiet, std::uint64_t most_bytes) {
  BlockList rest;
  while (Block* block = quiet.pop()) {
    bool kept = quiet_bytes_ + block->capacity <= most_bytes;
    if (kept && is_large(block->capacity)) {
      const auto empty = std::find(large_.begin(), large_.end(), nullptr);
      kept = empty != large_.end();
      if (kept) *empty = block;
    } else if (kept) {
      small_[small_class(block->capacity)].push(block);
    }
    if (kept) {
      quiet_bytes_ += block->capacity;
    } else {
      rest.push(block);
    }
  }
  quiet.splice(rest);
}

BlockList ThreadCache::take_batch() {
  BlockList batch;
  batch.splice(batch_);
  if (batch.count >= target_) target_ = std::min(2 * target_, kLargestBatch);
  return batch;
}

BlockList ThreadCache::drain() {
  BlockList drained;
  for (Block*& block : large_) {
    if (block != nullptr) drained.push(block);
    block = nullptr;
  }
  for (BlockList& list : small_) drained.splice(list);
  quiet_bytes_ = 0;
  return drained;
}

void ThreadCache::wait_for_lock() {
  for (unsigned tries = 1;; ++tries) {
    if (!locked_.load(std::memory_order_relaxed) &&
        !locked_.exchange(true, std::memory_order_acquire)) {
      return;
    }
    if (tries % 64 == 0) sched_yield();
  }
}

}  // namespace cupool::core
