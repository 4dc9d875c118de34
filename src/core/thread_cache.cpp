// The lists of a thread.
#include "core/thread_cache.h"

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
    const std::int64_t rest = application() - application_high;
    if (rest != 0) stats.gauge_add(gauge, rest);
  }
  const auto add = [&stats](Gauge gauge, std::int64_t bytes) {
    if (bytes != 0) stats.gauge_add(gauge, bytes);
  };
  const std::int64_t allocated = signed_bytes(malloc_capacity);
  const std::int64_t freed = signed_bytes(free_capacity);
  add(Gauge::rounding_bytes, allocated - freed - application());
  add(Gauge::cached_bytes, collected - allocated);
  add(Gauge::retired_bytes, freed - collected);
  sizes.fold(stats.requested_sizes());
  if (owner != nullptr && mallocs != 0) owner->add_mallocs(mallocs, malloc_bytes);
  if (owner != nullptr && frees != 0) owner->add_frees(frees);
  told_calls += mallocs + frees;
  static_cast<TallyFigures&>(*this) = TallyFigures{};
}

// The search touches no block.
Block* ThreadCache::take_large(std::uint64_t capacity) {
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
  quiet_bytes_ -= block->capacity;
  return block;
}

Block* ThreadCache::take_large_hot(std::uint64_t bytes) {
  constexpr std::uint64_t kLargestRequest = 1ull << 62;  // that has a capacity
  if (bytes == 0 || bytes > kLargestRequest || large_count_ == 0 ||
      tally.is_due_after(static_cast<std::int64_t>(bytes), limits.tally)) {
    return nullptr;
  }
  Block* const block = take_large(capacity_for(bytes));
  if (block != nullptr) tally.count_malloc(bytes, block->capacity);
  return block;
}

void ThreadCache::keep(BlockList& quiet) {
  if (quiet.empty()) return;
  const std::uint64_t capacity = quiet.head->capacity;
  if (!is_large(capacity)) {
    SmallList& small = small_[small_class(capacity)];
    small.only_freed = 0;
    if (quiet_bytes_ + quiet.bytes <= limits.quiet) return keep_chain(small, quiet);
  }
  BlockList rest;
  while (Block* block = quiet.pop()) {
    if (!keep_one(block)) rest.push(block);
  }
  quiet.splice(rest);
}

void ThreadCache::join(Ordering& ordering) {
  if (batch_.empty()) return;
  ++batches_;
  const bool full = batch_.count() >= target_;
  FreedBlocks joining = batch_.take();
  const EpochNumber epoch = ordering.join(joining.bytes, joining.count());
  // A later fence also covers an older batch, so that a full queue loses nothing but time.
  const bool merged = in_flight_count_ != 0 &&
                      (newest_in_flight().epoch == epoch || in_flight_count_ == kMostInFlight);
  if (!merged) ++in_flight_count_;
  if (full && ++full_batches_ >= (target_ < kQuickBatch ? 1u : kFullBatches)) {
    target_ = std::min(2 * target_, limits.blocks);
    full_batches_ = 0;
  }
  InFlight& newest = newest_in_flight();
  newest.epoch = epoch;
  in_flight_bytes_ += joining.bytes;
  newest.blocks.splice(joining);
}

// What a thread only frees, others allocate: of the blocks of a class that it did without for a
// whole period, half go to where they can be had; all, and all to come, if it took none at all.
void ThreadCache::shed(BlockList* surplus) {
  batches_ = 0;
  for (std::size_t index = 0; index < kSmallClasses; ++index) {
    SmallList& small = small_[index];
    const bool only_freed = small.taken_from == 0 && small.count != 0;
    std::uint32_t idle = only_freed ? small.count : (small.fewest + 1) / 2;
    for (; idle != 0; --idle) {
      Block* block = take_small(index);
      count_quiet(-block->capacity);
      surplus->push(block);
    }
    small.fewest = small.count;
    small.taken_from = 0;
    if (only_freed) small.only_freed = 1;
  }
}

ThreadCache::AllInFlight ThreadCache::drain_in_flight() {
  const AllInFlight drained = in_flight_;
  in_flight_ = AllInFlight{};
  in_flight_bytes_ = 0;
  in_flight_count_ = 0;
  return drained;
}

BlockList ThreadCache::drain_quiet() {
  BlockList drained;
  const auto drain = [&drained](Block* block) {
    block->state.store(BlockState::quiet, std::memory_order_relaxed);
    drained.push(block);
  };
  while (large_count_ != 0) drain(large_[--large_count_]);
  for (std::size_t index = 0; index < kSmallClasses; ++index) {
    while (Block* block = take_small(index)) drain(block);
  }
  quiet_bytes_ = 0;
  return drained;
}

void ThreadCache::abandon() {
  batch_.take();
  drain_in_flight();
  drain_quiet();
}

}  // namespace cupool::core
