// SPDX-License-Identifier: Apache-2.0
// What goes back to the driver of the stream-ordered memory that lies idle in the caches of
// streams: blocks that the GPU does not use, or all in the order of the context's work.
#pragma once

#include <cstdint>

#include "engine/async/stream_caches.h"
#include "engine/context/context_registry.h"
#include "engine/serve/async_blocks.h"
#include "engine/serve/idle_memory.h"

namespace cupool::engine {

/// One per process. Thread-safe.
class AsyncIdle {
 public:
  AsyncIdle(const cuda::Driver& driver, ContextRegistry& registry, IdleMemory& idle,
            StreamCaches& caches, AsyncBlocks& blocks)
      : driver_(driver), registry_(registry), idle_(idle), caches_(caches), blocks_(blocks) {}

  /// Asks for a fence that covers all idle memory; records it, if there is none. Returns the newest
  /// complete epoch.
  enum class Look { none, once, for_a_moment };  ///< none: without a fence
  EpochNumber settle(Context& context, Look look);

  /// Gives idle memory of the context that the GPU does not use back to the driver: settle()s, and
  /// asks the streams. The caller need not be in a visit. To::device: then a pool that is not kept
  /// gives back what is idle, although the program may have set it. `limit_ns`: of the wait for a
  /// context that may be ending; see ContextGate::enter().
  enum class To { pool, device };
  struct Given {
    std::uint64_t blocks = 0;  ///< bytes that the driver's pool got
    std::uint64_t device = 0;  ///< bytes that the device got of a pool that is not kept
  };
  Given give_back(Context& context, To to, std::uint64_t limit_ns = 0,
                  Look look = Look::for_a_moment);
  /// The same for all contexts of `device`, to the pool. Of others than `own` (null: of all) what
  /// is not at hand stays: their ends may take long.
  void give_back_of(int device, const Context* own);
  /// Gives back what `stream`, which has the place, has freed: in its own order, as the program
  /// asked. The caller is about to allocate there. False: there was none.
  bool give_back_in(Context& context, const StreamCaches::Place& place, CUstream stream);
  /// Gives all back, in the order of the work of each context.
  void give_all_back();
  /// The epoch whose completion covers all idle memory of the context; kNoEpoch: there is none.
  EpochNumber covering_epoch(Context& context);

  /// For decay, on a background thread: gives back some of what was idle for a whole span. True:
  /// there may be more. The caller holds off the end of contexts.
  bool give_back_unneeded();
  void end_decay_step() {
    if (AsyncBlocks::any()) caches_.end_decay_step();
  }

  /// A capture is about to begin, of any stream: records what tells during it which memory the GPU
  /// does not use.
  void before_capture();
  /// A stream is about to be destroyed that is no default one.
  void stream_ends(CUstream stream);
  /// The context is about to end, or cupool to stop serving there: what the GPU does not use goes
  /// back. Other threads still visit the context.
  void before_end(Context& context);
  /// The driver is about to end `context`, with its streams: idle memory goes back.
  void context_ends(Context& context);
  /// The driver has ended it. `alone`: see ContextEnd.
  void context_gone(Context& context, bool alone);

  /// Idle bytes of the device.
  std::uint64_t bytes(Device& device);
  /// Adds what the caches have counted to the statistics.
  void fold();

 private:
  BlockList take_unused(Context& context, Look look, StreamCaches::Which which,
                        std::uint64_t most_bytes);
  std::uint64_t release(Context& context, BlockList& idle);
  void release_in_order(Context& context, BlockList& idle);
  template <typename Free>
  std::uint64_t free_by(BlockList& idle, const Free& free);
  std::uint64_t free_in(BlockList& idle, CUstream stream);
  void keep(Context& context, BlockList& idle);
  bool is_in_pool(CUdeviceptr address) const;

  const cuda::Driver& driver_;
  ContextRegistry& registry_;
  IdleMemory& idle_;
  StreamCaches& caches_;
  AsyncBlocks& blocks_;
};

}  // namespace cupool::engine
