// SPDX-License-Identifier: Apache-2.0
// One CUDA context of the program: its ordering, caches and streams, and whether it is still
// usable.
#pragma once

#include <cstdint>

#include "cuda/driver.h"
#include "engine/backend/backend.h"
#include "engine/backend/small_chunk.h"
#include "engine/backend/stream_stock.h"
#include "engine/block/block_cache.h"
#include "engine/context/context_life.h"
#include "engine/context/context_threads.h"
#include "engine/context/context_visit.h"
#include "engine/context/device.h"
#include "engine/context/thread_slots.h"
#include "engine/reclaim/foreign_streams.h"
#include "engine/reclaim/host_work.h"
#include "engine/reclaim/ordering.h"

namespace cupool::engine {

/// Never destroyed, because a thread may still use it while the program destroys the context. A
/// handle that comes back (a primary context after a reset) gets the same object, as a new
/// incarnation. Thread-safe.
// Written and read-only members apart. NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
class Context final : public StreamSource {
 public:
  Context(const cuda::Driver& driver, CUcontext handle, Device& device)
      : driver_(driver),
        handle_(handle),
        device_(device),
        max_block_(device.limits().max_block),
        host_work_(driver, handle),
        ordering_(driver, handle, device.stats()),
        foreign_streams_(driver, handle),
        small_chunk_(driver, handle),
        threads_(ordering_, cache_, device.stats()) {}

  CUcontext handle() const override { return handle_; }
  Device& device() { return device_; }
  Ordering& ordering() { return ordering_; }
  HostWork& host_work() { return host_work_; }
  ForeignStreams& foreign_streams() { return foreign_streams_; }
  SmallChunk& small_chunk() { return small_chunk_; }
  BlockCache& cache() { return cache_; }
  StreamStock& streams() override { return streams_; }
  ContextThreads& threads() { return threads_; }
  stats::DeviceStats& stats() { return device_.stats(); }
  /// Bytes of the largest request that is served: CUPOOL_MAX_BLOCK.
  std::uint64_t max_block() const { return max_block_; }
  std::uint64_t incarnation() const { return life_.incarnation(); }

  CUresult thread_stream(CUstream* stream) override {
    return engine::thread_stream(driver_, *this, stream);
  }

  /// Threads that use blocks, events or streams of the context are inside this gate.
  ContextGate& gate() { return gate_; }
  /// Whether the driver may have taken back its memory: the context is gone, or is just ending.
  bool ends() const { return gate_.is_closed() || gone(); }

  /// False after a sticky error (I7) or the end of the context: all calls pass through.
  bool usable() const { return life_.usable(); }
  bool gone() const { return life_.gone(); }
  void set_poisoned() { life_.set_poisoned(); }

  /// The driver has destroyed the context with its streams and events. No thread is inside.
  void set_gone() {
    life_.end();
    threads_.abandon();
    ordering_.abandon();
    host_work_.abandon();
    cache_.abandon();
    streams_.clear();
    foreign_streams_.clear();
    small_chunk_.clear();
  }
  /// As set_gone(), while a thread is still inside: only marks the context as gone.
  void set_gone_untouched() {
    gate_.was_not_awaited();
    life_.end();
  }
  /// Begins the next life of a context that has ended. False: not before the gate opens.
  bool begin_again() { return life_.begin_again(gate_); }

 private:
  // Read by every call and rarely written, so apart from members that threads write.
  const cuda::Driver& driver_;
  const CUcontext handle_;
  Device& device_;
  const std::uint64_t max_block_;
  ContextLife life_;
  alignas(128) ContextGate gate_;
  HostWork host_work_;
  alignas(128) Ordering ordering_;
  alignas(128) BlockCache cache_;
  StreamStock streams_;
  ForeignStreams foreign_streams_;
  SmallChunk small_chunk_;
  ContextThreads threads_;
};

/// The calling thread's cache in `context`, if it is the cache that it used last, else null.
[[gnu::always_inline]] inline ThreadCache* last_thread_cache(const Context& context) {
  const detail::LastCache& last = detail::last_cache;
  return last.context == &context && last.incarnation == context.incarnation() ? last.cache
                                                                               : nullptr;
}

/// The calling thread's cache in `context`; null: out of host memory, or none is possible.
inline ThreadCache* thread_cache(Context& context) {
  ThreadCache* const last = last_thread_cache(context);
  return last != nullptr ? last : detail::find_thread_cache(context);
}

}  // namespace cupool::engine
