// SPDX-License-Identifier: Apache-2.0
// The thread cache's work off the hot path.
#include "engine/thread/thread_cache.h"

#include "engine/thread/thread_cache_stock.h"

namespace cupool::engine {

[[gnu::noinline]] void ThreadCache::lock_otherwise() {
  while (!lock_.lock_unless(parked_)) {
    if (stock_.unpark(*this)) return;
  }
}

// For a large block, or for a request that no block can serve.
Block* ThreadCache::pop_large_hot(std::uint64_t bytes) {
  constexpr std::uint64_t kLargestRequest = 1ull << 62;  // larger requests have no capacity
  if (bytes == 0 || bytes > kLargestRequest || !idle.has_large() ||
      tally.is_due_after(static_cast<std::int64_t>(bytes), limits.tally)) {
    return nullptr;
  }
  Block* const block = idle.pop_large(capacity_for(bytes));
  if (block != nullptr) tally.count_malloc(bytes, block->capacity);
  return block;
}

void ThreadCache::flush(Epochs& epochs) {
  if (batch.empty()) return;
  FreedBlocks joining = batch.pop_all();
  const EpochNumber epoch = epochs.join(joining.bytes, joining.count());
  in_flight.add(epoch, joining);
}

void ThreadCache::abandon() {
  batch.pop_all();
  in_flight.pop_all();
  idle.pop_all();
}

}  // namespace cupool::engine
