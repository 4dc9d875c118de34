// SPDX-License-Identifier: Apache-2.0
// A thread's own part of a context, so that its allocations and frees meet no other thread: cached
// blocks, the free batch, batches in flight, and counts that are not yet in the statistics.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "engine/block/block.h"
#include "engine/block/shared_mutex.h"
#include "engine/block/size_class.h"
#include "engine/reclaim/epochs.h"
#include "engine/thread/free_batch.h"
#include "engine/thread/idle_lists.h"
#include "engine/thread/tally.h"
#include "util/lock_order.h"
#include "util/mutation.h"

namespace cupool::engine {

class ThreadCacheStock;

/// For one thread in one context. The thread takes the lock for each operation. Other threads take
/// it only to drain the cache: when memory is short, when the context is synchronised or gone, when
/// the thread ends, for a report. No lock is taken under it.
class alignas(128) ThreadCache {
 public:
  /// `stock` parks and unparks this cache.
  explicit ThreadCache(ThreadCacheStock& stock) : stock_(stock) {}

  using Guard = std::lock_guard<ThreadCache>;
  void lock() {
    util::LockOrder::check(kRank);
    if (!lock_.try_lock()) lock_otherwise();
    util::LockOrder::taken(kRank);
  }
  bool try_lock() {
    if (!lock_.try_lock()) return false;
    util::LockOrder::taken(kRank);
    return true;
  }
  void unlock() {
    util::LockOrder::released(kRank);
    lock_.unlock();
  }

  /// Whether the stock holds the lock of this cache, because the cache has nothing new for it. The
  /// thread takes the cache back when it next needs the lock. Call under the stock's lock.
  bool is_parked() const { return parked_.load(std::memory_order_relaxed); }

  /// Limits of one thread, in bytes if not in blocks; equal for all threads of a context.
  struct Limits {
    std::size_t blocks = 512;      ///< block threshold of a batch
    std::uint64_t batch = 0;       ///< byte threshold of a batch
    std::uint64_t few = 0;         ///< byte threshold of a batch with few blocks
    std::uint64_t cached = 0;      ///< cached bytes
    std::uint64_t lane = 0;        ///< cached bytes up to which frees in a lane add more
    std::int64_t tally = 1 << 20;  ///< bytes not yet in the statistics
  };

  /// Sets the owner of the figures that the tally counts from now on.
  void set_owner(stats::ThreadFigures& owner) {
    const Guard guard(*this);
    tally.owner = &owner;
  }

  // Under the lock:

  /// Whether nothing was freed since the last flush and nothing counted since the last fold.
  bool has_nothing_new() const {
    return batch.empty() && tally.mallocs == 0 && tally.frees == 0 && tally.reclaimed == 0;
  }

  /// Pops and counts a block for a request of `bytes`. Null: no block, or the tally is due for a
  /// fold.
  [[gnu::always_inline]] Block* pop_hot(std::uint64_t bytes) {
    const std::size_t index = small_class_of_request(bytes);
    if (index >= IdleLists::kLargeClass) return pop_large_hot(bytes);
    if (!idle.has_small(index) ||
        tally.is_due_after(static_cast<std::int64_t>(bytes), limits.tally)) {
      return nullptr;
    }
    Block* const block = idle.pop_small(index);
    tally.count_malloc(bytes, block->capacity);
    return block;
  }
  /// Adds a freed block to the batch. True: the batch has to be flushed.
  bool retire(Block* block) {
    if (CUPOOL_MUTATED("batch-grows-after-fence") && !in_flight.empty()) {
      in_flight.newest().blocks.others.push(block);
      return false;
    }
    batch.push(block);
    return batch.is_due();
  }
  /// As retire(), and counts the block. In a lane (engine/reclaim/lane), with the open epoch as
  /// `lane`, the block is cached instead. False, without side effects: the block would trigger a
  /// flush or does not fit, or the tally is due for a fold.
  [[gnu::always_inline]] bool retire_hot(Block* block, EpochNumber lane = kNoEpoch) {
    const std::uint64_t bytes = block->requested;
    if (tally.is_due_after(-static_cast<std::int64_t>(bytes), limits.tally)) return false;
    if (lane != kNoEpoch) {
      if (!idle.cache_one(block, limits.lane)) return false;
      block->lane_epoch = value_of(lane);
      tally.reclaimed += static_cast<std::int64_t>(block->capacity);
    } else if (batch.is_due_with(batch.count() + 1, batch.bytes() + block->capacity)) {
      return false;
    } else {
      retire(block);
    }
    tally.count_free(bytes, block->capacity);
    return true;
  }
  /// Flushes the batch into the open epoch; its blocks are in flight from now on.
  void flush(Epochs& epochs);
  /// Reclaims batches whose epochs are complete, and the batch being filled if `batch_is_complete`.
  /// Adds the blocks that the thread should not keep to `surplus`; these still count as retired.
  /// `unfit`: see IdleLists.
  template <typename Unfit>
  void reclaim(EpochNumber complete_up_to, bool batch_is_complete, BlockList* surplus,
               const Unfit& unfit);
  std::uint64_t waiting_bytes() const { return batch.bytes() + in_flight.bytes(); }
  /// Whether the batch and those in flight, with `bytes` more, reach the blocks or bytes of
  /// `batches` batches.
  bool waits_for(std::size_t batches, std::uint64_t bytes) const {
    return batch.count() + in_flight.blocks() >= batches * limits.blocks ||
           waiting_bytes() + bytes > batches * limits.batch;
  }
  /// Whether the thread holds blocks here and has made no call since the last query.
  bool lies_idle() {
    const std::uint64_t before = calls_at_last_look_;
    calls_at_last_look_ = tally.calls();
    return calls_at_last_look_ == before && waiting_bytes() + idle.bytes() != 0;
  }
  /// Drops all state, because the context is gone.
  void abandon();

 private:
  friend class ThreadCacheStock;
  static constexpr util::LockRank kRank = util::LockRank::thread_cache;

  void lock_otherwise();
  Block* pop_large_hot(std::uint64_t bytes);

  // For the stock, under its lock:
  /// Gives the cache to the stock. The caller holds the cache's lock, which is the stock's from now
  /// on.
  void park() {
    util::LockOrder::released(kRank);
    parked_.store(true, std::memory_order_relaxed);
  }
  /// Takes the cache from the stock. It stays locked, for the calling thread.
  void unpark() { parked_.store(false, std::memory_order_relaxed); }
  /// Unlocks the cache after unpark().
  void unlock_unparked() { lock_.unlock(); }

  SpinLock lock_;
  /// Orders nothing: who sees it takes the stock's lock.
  std::atomic<bool> parked_{false};
  ThreadCacheStock& stock_;
  std::size_t place_in_stock_ = 0;  ///< index among the active caches
  std::uint64_t calls_at_last_look_ = 0;

 public:
  Limits limits;
  Tally tally;
  BatchesInFlight in_flight;
  IdleLists idle;
  FreeBatch batch;  ///< that the thread is filling
};

template <typename Unfit>
void ThreadCache::reclaim(EpochNumber complete_up_to, bool batch_is_complete, BlockList* surplus,
                          const Unfit& unfit) {
  const auto cache = [&](FreedBlocks& freed) {
    idle.cache_freed(freed, limits.cached, unfit, surplus, &tally.reclaimed);
  };
  if (batch_is_complete) {
    FreedBlocks freed = batch.pop_all();
    cache(freed);
  }
  while (in_flight.oldest() <= complete_up_to) in_flight.pop_oldest(cache);
}

}  // namespace cupool::engine
