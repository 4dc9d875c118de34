// SPDX-License-Identifier: Apache-2.0
// The calling thread's part of a context: its cache, and a stream on which it allocates and frees
// pool memory. Nothing else runs on these streams, and they never wait (I2).
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "cuda/driver.h"
#include "engine/thread/thread_cache.h"
#include "engine/thread/thread_cache_stock.h"

namespace cupool::engine {

class Context;

namespace detail {
/// The cache that the thread asked for last.
struct LastCache {
  const Context* context;
  std::uint64_t incarnation;
  ThreadCache* cache;
};
inline thread_local LastCache last_cache{};
ThreadCache* find_thread_cache(Context& context);
}  // namespace detail

/// The calling thread's stream in `context`, assigned on first use. `context` must be current.
CUresult thread_stream(const cuda::Driver& driver, Context& context, CUstream* stream);

/// Has the calling thread give back what it holds when it ends (ThreadOrder, streams and caches).
/// False: its end cannot be seen, and it must hold nothing. The process has no thread-specific key
/// left (PTHREAD_KEYS_MAX), or no host memory.
bool watch_thread_end();

/// In a forked child: threads that end no longer give back the parent's caches, since the lock for
/// that may be held forever.
void keep_thread_streams();

}  // namespace cupool::engine
