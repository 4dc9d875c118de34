// SPDX-License-Identifier: Apache-2.0
// The caches of all threads in a context, for operations that visit every thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

#include "engine/thread/thread_cache.h"
#include "util/lock_order.h"

namespace cupool::engine {

/// The caches of all threads in a context. A cache whose thread has ended is reused, usually empty,
/// and deleted when the context ends. Thread-safe. Its lock is taken before that of a cache.
///
/// Caches with nothing new are parked: operations that need the threads' latest frees and counts
/// skip them, so an idle thread costs nothing. The stock keeps a parked cache locked, so its thread
/// notices when it takes the lock, and the hot path needs no further check.
class ThreadCacheStock {
 public:
  /// An unused cache, or null if host memory is exhausted.
  ThreadCache* take();
  /// Takes back the cache of a thread that has ended, or of a context that is gone; the latter is
  /// not reused.
  void put_back(ThreadCache* cache, bool context_gone);
  /// Deletes the caches without a thread, because the context is gone.
  void delete_unused();

  /// Visits every cache, under its lock.
  template <typename Visit>
  void for_each(const Visit& visit) {
    const std::lock_guard lock(mutex_);
    for (ThreadCache* cache : all_) {
      if (cache->is_parked()) {
        visit(*cache);
      } else {
        const ThreadCache::Guard guard(*cache);
        visit(*cache);
      }
    }
  }
  /// Visits those with something new, under their locks, and parks the others.
  template <typename Visit>
  void for_each_active(const Visit& visit) {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < active_.size();) {
      ThreadCache& cache = *active_[i];
      cache.lock();
      if (cache.has_nothing_new()) {
        park_locked(cache);  // another cache has its place now
        continue;
      }
      visit(cache);
      cache.unlock();
      ++i;
    }
  }
  /// Gives a parked cache, locked, to its thread. False: it is no longer parked.
  bool unpark(ThreadCache& cache);

  /// Number of threads that have a cache now. One load.
  std::size_t in_use() const { return in_use_.load(std::memory_order_relaxed); }

 private:
  void delete_locked(ThreadCache* parked_cache);
  void park_locked(ThreadCache& locked_cache);
  void activate_locked(ThreadCache& cache);

  util::Ranked<util::LockRank::thread_cache_stock> mutex_;
  std::vector<ThreadCache*> all_;
  std::vector<ThreadCache*> active_;  ///< not parked
  std::vector<ThreadCache*> unused_;  ///< parked
  std::atomic<std::size_t> in_use_{0};
};

}  // namespace cupool::engine
