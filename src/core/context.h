// One CUDA context of the program: its ordering, its cache, its streams, and whether it is
// still of use.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/block_cache.h"
#include "core/device.h"
#include "core/host_work.h"
#include "core/ordering.h"
#include "core/thread_stream.h"
#include "cuda/driver.h"

namespace cupool::core {

/// Never destroyed: a thread may still look at it when the program destroys the context. A handle
/// that comes back (a primary context after a reset) is served by the same object, as a new
/// incarnation. Thread-safe.
// What is written apart from what is read. NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
class Context {
 public:
  Context(const cuda::Driver& driver, CUcontext handle, Device& device)
      : driver_(driver),
        handle_(handle),
        device_(device),
        max_block_(device.limits().max_block),
        host_work_(driver, handle),
        ordering_(driver, handle, device.stats()) {}

  CUcontext handle() const { return handle_; }
  Device& device() { return device_; }
  Ordering& ordering() { return ordering_; }
  HostWork& host_work() { return host_work_; }
  BlockCache& cache() { return cache_; }
  StreamStock& streams() { return streams_; }
  ThreadCacheStock& thread_caches() { return thread_caches_; }
  stats::DeviceStats& stats() { return device_.stats(); }
  /// Bytes of the largest request that is served: CUPOOL_MAX_BLOCK.
  std::uint64_t max_block() const { return max_block_; }
  std::uint64_t incarnation() const { return incarnation_.load(std::memory_order_acquire); }

  CUresult thread_stream(CUstream* stream) { return core::thread_stream(driver_, *this, stream); }

  /// What is taken from the caches of threads.
  enum class Drain {
    join,     ///< nothing: what they have freed joins the open epoch
    retired,  ///< and all freed blocks go to the ordering
    all,      ///< and quiet blocks go to the shared cache
  };
  void drain_threads(Drain what) {
    thread_caches_.for_each([&](ThreadCache& cache) { drain(cache, what); });
  }
  /// Everything of threads that have done nothing since the last call.
  void drain_idle_threads() {
    thread_caches_.for_each([&](ThreadCache& cache) {
      if (lies_idle(cache)) drain(cache, Drain::all);
    });
  }
  /// The same for one thread.
  void drain(ThreadCache& cache, Drain what) {
    ThreadCache::AllInFlight in_flight;
    BlockList quiet;
    {
      const ThreadCache::Guard guard(cache);
      cache.join(ordering_);
      if (what != Drain::join) {
        cache.expect_free();
        in_flight = cache.drain_in_flight();
      }
      if (what == Drain::all) quiet = cache.drain_quiet();
      cache.tally.fold(stats());
    }
    for (ThreadCache::InFlight& batch : in_flight) {
      BlockList blocks = batch.blocks.take_all();
      if (!blocks.empty()) ordering_.adopt(batch.epoch, blocks);
    }
    if (!quiet.empty()) cache_.put(quiet);
  }
  /// Tells the statistics what threads have counted.
  void fold_threads() {
    thread_caches_.for_each([&](ThreadCache& cache) {
      const ThreadCache::Guard guard(cache);
      cache.tally.fold(stats());
    });
  }

  /// False after a sticky error (I7) or the end of the context: everything passes through.
  bool usable() const { return state_.load(std::memory_order_acquire) == State::usable; }
  bool gone() const { return state_.load(std::memory_order_acquire) == State::gone; }
  void set_poisoned() { state_.store(State::poisoned, std::memory_order_release); }

  /// The driver has destroyed the context, and with it streams and events.
  void set_gone() {
    state_.store(State::gone, std::memory_order_release);
    incarnation_.fetch_add(1, std::memory_order_acq_rel);
    thread_caches_.for_each([&](ThreadCache& cache) {
      const ThreadCache::Guard guard(cache);
      cache.abandon();
      cache.tally.fold(stats());
    });
    ordering_.abandon();
    host_work_.abandon();
    cache_.abandon();
    streams_.clear();
  }
  void revive() { state_.store(State::usable, std::memory_order_release); }

 private:
  enum class State { usable, poisoned, gone };

  static bool lies_idle(ThreadCache& cache) {
    const ThreadCache::Guard guard(cache);
    return cache.lies_idle();
  }

  // Read by every call, and hardly ever written: apart from what threads write.
  const cuda::Driver& driver_;
  const CUcontext handle_;
  Device& device_;
  const std::uint64_t max_block_;
  std::atomic<State> state_{State::usable};
  std::atomic<std::uint64_t> incarnation_{1};
  alignas(128) HostWork host_work_;
  alignas(128) Ordering ordering_;
  alignas(128) BlockCache cache_;
  StreamStock streams_;
  ThreadCacheStock thread_caches_;
};

/// The calling thread's cache in `context` if it was the last one that it used, else null.
[[gnu::always_inline]] inline ThreadCache* last_thread_cache(const Context& context) {
  const detail::LastCache& last = detail::last_cache;
  return last.context == &context && last.incarnation == context.incarnation() ? last.cache
                                                                               : nullptr;
}

/// The calling thread's cache in `context`, or null if there can be none.
inline ThreadCache* thread_cache(Context& context) {
  ThreadCache* const last = last_thread_cache(context);
  return last != nullptr ? last : detail::find_thread_cache(context);
}

}  // namespace cupool::core
