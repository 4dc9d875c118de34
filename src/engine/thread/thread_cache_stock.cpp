// SPDX-License-Identifier: Apache-2.0
// Hands out, takes back and parks thread caches.
#include "engine/thread/thread_cache_stock.h"

#include <algorithm>
#include <new>

#include "util/mutation.h"

namespace cupool::engine {

ThreadCache* ThreadCacheStock::take() {
  const std::lock_guard lock(mutex_);
  ThreadCache* cache = nullptr;
  if (!unused_.empty()) {
    cache = unused_.back();
    unused_.pop_back();
    activate_locked(*cache);
    cache->unlock_unparked();
  } else {
    // Room in all lists, so that no later call needs host memory.
    try {
      for (auto* const list : {&all_, &active_, &unused_}) {
        if (list->capacity() <= all_.size()) list->reserve(2 * all_.size() + 1);
      }
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
    cache = new (std::nothrow) ThreadCache(*this);
    if (cache == nullptr) return nullptr;
    all_.push_back(cache);
    activate_locked(*cache);
  }
  in_use_.fetch_add(1, std::memory_order_relaxed);
  return cache;
}

void ThreadCacheStock::put_back(ThreadCache* cache, bool context_gone) {
  const std::lock_guard lock(mutex_);
  if (!cache->is_parked()) {
    cache->lock();
    park_locked(*cache);
  }
  in_use_.fetch_sub(1, std::memory_order_relaxed);
  if (context_gone) {
    delete_locked(cache);
  } else {
    unused_.push_back(cache);
  }
}

void ThreadCacheStock::delete_unused() {
  const std::lock_guard lock(mutex_);
  for (ThreadCache* cache : unused_) delete_locked(cache);
  unused_.clear();
}

void ThreadCacheStock::delete_locked(ThreadCache* parked_cache) {
  all_.erase(std::remove(all_.begin(), all_.end(), parked_cache), all_.end());
  delete parked_cache;
}

bool ThreadCacheStock::unpark(ThreadCache& cache) {
  const std::lock_guard lock(mutex_);
  if (!cache.is_parked()) return false;
  activate_locked(cache);
  return true;
}

// The cache stays locked.
void ThreadCacheStock::park_locked(ThreadCache& locked_cache) {
  ThreadCache& last = *active_.back();
  last.place_in_stock_ = locked_cache.place_in_stock_;
  active_[last.place_in_stock_] = &last;
  active_.pop_back();
  locked_cache.park();
  if (all_.size() > 64 && CUPOOL_MUTATED("forgets-threads-beyond-64")) {
    all_.erase(std::remove(all_.begin(), all_.end(), &locked_cache), all_.end());
  }
}

void ThreadCacheStock::activate_locked(ThreadCache& cache) {
  cache.unpark();
  cache.place_in_stock_ = active_.size();
  active_.push_back(&cache);
  if (CUPOOL_MUTATED("forgets-threads-beyond-64") &&
      std::find(all_.begin(), all_.end(), &cache) == all_.end()) {
    all_.push_back(&cache);
  }
}

}  // namespace cupool::engine
