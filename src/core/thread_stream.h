// What the calling thread has of its own in a context: its cache, and the stream on which it takes
// memory from the driver's pools and gives it back. Nothing else ever runs on that stream and it
// never waits for anything (I2).
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "core/thread_cache.h"
#include "cuda/driver.h"

namespace cupool::core {

class Context;

/// The streams of cupool in a context. Those of threads that have ended are idle and used again, so
/// that threads that come and go do not make streams without end. Thread-safe.
class StreamStock {
 public:
  /// An idle stream, or null.
  CUstream take_idle();
  void put_idle(CUstream stream);
  void add(CUstream created);
  std::vector<CUstream> all();
  void clear();

 private:
  std::mutex mutex_;
  std::vector<CUstream> all_;
  std::vector<CUstream> idle_;
};

/// The caches of all threads in a context. Those of threads that have ended are empty and used
/// again. Never freed. Thread-safe.
class ThreadCacheStock {
 public:
  /// An unused cache, or null if host memory is at its end.
  ThreadCache* take(Context& context);
  void put_back(ThreadCache* cache);

  /// Visits every cache; those of other threads are to be locked.
  template <typename Visit>
  void for_each(const Visit& visit) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (ThreadCache* cache : all_) visit(*cache);
  }
  /// Threads that have a cache now. One load.
  std::size_t in_use() const { return in_use_.load(std::memory_order_relaxed); }

 private:
  std::mutex mutex_;
  std::vector<ThreadCache*> all_;
  std::vector<ThreadCache*> unused_;
  std::atomic<std::size_t> in_use_{0};
};

namespace detail {
/// The thread's cache that was last asked for.
struct LastCache {
  const Context* context;
  std::uint64_t incarnation;
  ThreadCache* cache;
};
inline thread_local LastCache last_cache{};
ThreadCache* find_thread_cache(Context& context);
}  // namespace detail

/// The calling thread's stream in `context`, taken from its stock or created (non-blocking) on
/// first use. `context` is current.
CUresult thread_stream(const cuda::Driver& driver, Context& context, CUstream* stream);

/// In a forked child: what its threads still remember of the parent's streams is not given back
/// when they end; a lock for that may be held for ever.
void keep_thread_streams();

}  // namespace cupool::core
