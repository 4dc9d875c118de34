// SPDX-License-Identifier: Apache-2.0
// The program's stream-ordered memory (cuMemAllocAsync, cuMemFreeAsync) of a device's default pool,
// served from caches (CUPOOL_ASYNC=serve). Read with docs/design.md, Stream-ordered memory.
//
// Each block is an allocation of the driver's with the same address, so at any time the driver may
// free it instead: whatever is uncommon goes to the driver.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "config/settings.h"
#include "engine/async/stream_caches.h"
#include "engine/block/pointer_map.h"
#include "engine/context/context_registry.h"
#include "engine/reclaim/serving.h"
#include "engine/serve/found_memory.h"
#include "engine/serve/free_policy.h"
#include "engine/serve/host_function.h"
#include "engine/serve/idle_memory.h"

namespace cupool::engine {

namespace detail {
/// What a thread knows of a stream.
struct KnownStream {
  std::uint64_t owner;  ///< number of the AsyncMemory; 0: unused
  CUstream stream;
  const Context* context;
  CUmemoryPool pool;  ///< the default one of the stream's device
  StreamCaches::Place place;
};
/// In pairs, the latest of which comes first.
inline thread_local KnownStream known_streams[64]{};
}  // namespace detail

/// One per process. Thread-safe. Streams are explicit handles (entry/default_stream).
class AsyncMemory {
 public:
  AsyncMemory(const cuda::Driver& driver, const config::Settings& settings,
              ContextRegistry& registry, FreePolicy& policy, IdleMemory& idle);

  /// Whether allocations may be served. One load.
  static bool is_on() { return on_.load(std::memory_order_relaxed); }
  /// Whether there may be blocks. One load.
  static bool has_any() { return any_.load(std::memory_order_relaxed); }

  /// Memory that was freed in `stream`, or 0: allocate() decides. No driver call. `pool`: null for
  /// the device's current one.
  CUdeviceptr try_allocate(std::size_t bytes, CUmemoryPool pool, CUstream stream) {
    const Known& known = known_of(stream);
    Context* const context = registry_.known_current();
    if (!is_known(known, stream, context) || (pool != nullptr && pool != known.pool) ||
        bytes - 1 >= kLargestStreamBlock || !serves(*context)) {
      return 0;
    }
    return known.place.cache->pop(known.place.use, stream_capacity_for(bytes), bytes);
  }

  /// As try_allocate(), also from other streams; else by `real(bytes)`, which allocates into
  /// `*address`, and is a block from then on. Served::no: the driver serves the request as it is.
  enum class Served { no, from_cache, by_driver };
  template <typename Real>
  Served allocate(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool, CUstream stream,
                  const Real& real) {
    Request request;
    if (!may_allocate(&request, bytes, pool, stream)) return Served::no;
    if (const CUdeviceptr memory = pop(request)) {
      *address = memory;
      return Served::from_cache;
    }
    if (real(request.capacity) != CUDA_SUCCESS) return Served::no;
    adopt(request, *address);
    return Served::by_driver;
  }

  /// Frees the block at `address` in the order of `stream`. `std::nullopt`: the driver's to free,
  /// by free_by_driver(). No driver call in the common case.
  std::optional<CUresult> try_free(CUdeviceptr address, CUstream stream);

  /// Makes the driver's free of `address`, which may be a block.
  template <typename Real>
  CUresult free_by_driver(CUdeviceptr address, const Real& real) {
    Block* block = nullptr;
    if (!give_up(address, &block)) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = real();
    if (block != nullptr) given_up(*block, result == CUDA_SUCCESS);
    return result;
  }

  /// The driver has handed `address` out: a record of it is of memory that was freed by a route
  /// that cupool does not see.
  void forget_stale(CUdeviceptr address);

  /// The memory that begins at `base` as the program sees it at `address`. Also for memory that is
  /// known outside CUDA's ordering: the driver frees it.
  FoundMemory find(CUdeviceptr base, CUdeviceptr address) const;
  void mark_shared_outside(CUdeviceptr base);

  /// The stream is about to be destroyed.
  void stream_ends(CUstream stream) {
    if (has_any() && stream != nullptr) caches_.stream_ends(stream);
  }
  /// The program is about to set the current pool of a device, perhaps before the engine's start.
  static void distrust_current_pools() {
    distrusted_.store(true);
    on_.store(false);
  }
  /// Nothing is served any more. What is idle goes back to the driver.
  void stop();

  /// Gives idle memory of the context that the GPU does not use back to the driver. Returns its
  /// bytes. Records a fence, and asks for it for a moment. The caller need not be in a visit.
  /// To::device: then the pool gives back what is idle, although the program may have set it.
  enum class To { pool, device };
  std::uint64_t give_back(Context& context, To to);
  /// The same for all contexts of the device whose default pool this is.
  void give_back_of(CUmemoryPool pool);
  /// The epoch whose completion covers all idle memory of the context; kNoEpoch: there is none.
  EpochNumber covering_epoch(Context& context);
  /// For decay, on a background thread: gives back some of what was idle for a whole span. True:
  /// there may be more. The caller holds off the end of contexts.
  bool give_back_unneeded();
  void end_decay_step() {
    if (has_any()) caches_.end_decay_step();
  }

  /// The driver is about to end `context`, with its streams: idle memory goes back.
  void context_ends(Context& context);
  /// The driver has ended it. `alone`: see ContextEnd.
  void context_gone(Context& context, bool alone);

  /// Idle bytes of the device.
  std::uint64_t idle_bytes(Device& device);
  /// Bytes by which the driver's figure of the pool's use exceeds what the program uses, if this is
  /// a default pool with blocks.
  std::uint64_t unused_bytes(CUmemoryPool pool);

  /// Adds what the caches have counted to the statistics.
  void fold();

 private:
  using Known = detail::KnownStream;
  struct Request {
    Context* context = nullptr;
    std::uint64_t life = 0;
    std::size_t bytes = 0;
    std::uint64_t capacity = 0;
    StreamCaches::Place place;
  };

  static Known* pair_of(CUstream stream) {
    const auto mixed = reinterpret_cast<std::uintptr_t>(stream) * std::uint64_t{0x9e3779b97f4a7c15};
    return &detail::known_streams[mixed >> 59 << 1];
  }
  static const Known& known_of(CUstream stream) {
    const Known* const pair = pair_of(stream);
    return pair[0].stream == stream ? pair[0] : pair[1];
  }
  bool is_known(const Known& known, CUstream stream, const Context* context) const {
    return known.stream == stream && known.context == context && known.owner == number_ &&
           context != nullptr;
  }
  // What may change between two calls; find_place() has the rest.
  bool serves(const Context& context) const {
    return is_on() && Serving::open() && context.usable() && runs_no_host_functions();
  }
  bool may_allocate(Request* request, std::size_t bytes, CUmemoryPool pool, CUstream stream);
  const Known* find_place(Context& context, CUstream stream);
  CUdeviceptr pop(const Request& request);
  void adopt(const Request& request, CUdeviceptr address);
  std::optional<CUresult> free_slowly(Block& block, std::uint64_t word, CUstream stream);
  bool give_up(CUdeviceptr address, Block** block);
  void given_up(Block& block, bool freed);
  void remember(Block& block);
  bool forget(const Block& block);
  enum class Look { once, for_a_moment };
  EpochNumber settle(Context& context, Look look);
  std::uint64_t release(Context& context, BlockList& idle);
  void release_in_order(Context& context, BlockList& idle);
  std::uint64_t free_in(BlockList& idle, CUstream stream);
  void keep(Context& context, BlockList& idle);
  int device_of(CUmemoryPool pool) const;

  static inline std::atomic<bool> on_{false};
  static inline std::atomic<bool> distrusted_{false};
  static inline std::atomic<bool> any_{false};

  const cuda::Driver& driver_;
  ContextRegistry& registry_;
  FreePolicy& policy_;
  IdleMemory& idle_;
  const std::uint64_t number_;
  PointerMap map_;
  StreamCaches caches_;
  std::atomic<std::uint64_t> held_{0};  ///< bytes of all blocks
  std::atomic<std::uint64_t> peak_{0};  ///< of those that the program had
  std::array<std::atomic<CUmemoryPool>, stats::kMaxDevices> pools_{};
};

}  // namespace cupool::engine
