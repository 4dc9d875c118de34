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
#include "cuda/stream_kind.h"
#include "engine/async/stream_caches.h"
#include "engine/context/context_registry.h"
#include "engine/context/submission.h"
#include "engine/reclaim/serving.h"
#include "engine/serve/async_blocks.h"
#include "engine/serve/async_idle.h"
#include "engine/serve/free_policy.h"
#include "engine/serve/host_function.h"
#include "engine/serve/idle_memory.h"

namespace cupool::engine {

namespace detail {
/// What a thread knows of a stream.
struct KnownStream {
  CUstream stream;
  const Context* context;  ///< null: unused
  StreamCaches::Place place;
};
/// In pairs, the latest of which comes first. Few: a program may open the library itself, and then
/// there is little room for such data.
inline thread_local KnownStream known_streams[8]{};
}  // namespace detail

/// One per process. Thread-safe. Streams are explicit handles (entry/default_stream).
class AsyncMemory {
 public:
  AsyncMemory(const cuda::Driver& driver, const config::Settings& settings,
              ContextRegistry& registry, FreePolicy& policy, IdleMemory& idle);

  /// Whether allocations may be served. One load.
  static bool is_on() { return on_.load(std::memory_order_relaxed); }

  /// Memory that was freed in `stream`, or 0: allocate() decides. No driver call. `pool`: null for
  /// the device's current one.
  CUdeviceptr try_allocate(std::size_t bytes, CUmemoryPool pool, CUstream stream) {
    const Known& known = known_of(stream);
    Context* const context = registry_.known_current();
    if (!is_known(known, stream, context) || !is_default_pool(pool, *context) ||
        bytes - 1 >= kLargestStreamBlock || !serves(*context)) {
      return 0;
    }
    const CUdeviceptr memory =
        known.place.cache->pop(known.place.use, stream_capacity_for(bytes), bytes);
    if (memory != 0) allocated_in(driver_, stream);
    return memory;
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
    CUresult result = real(request.capacity);
    if (result == CUDA_ERROR_OUT_OF_MEMORY &&
        idle_.give_back_in(*request.context, request.place, stream)) {
      result = real(request.capacity);
    }
    if (result != CUDA_SUCCESS) {
      all_idle_.driver_refused(request.context, request.life, result);
      return Served::no;
    }
    adopt(request, *address);
    return Served::by_driver;
  }

  /// Frees the block at `address` in the order of `stream`. `std::nullopt`: the driver's to free,
  /// by free_by_driver(). No driver call in the common case.
  std::optional<CUresult> try_free(CUdeviceptr address, CUstream stream);

  /// Makes the driver's free of `address`, which may be a block.
  template <typename Real>
  CUresult free_by_driver(CUdeviceptr address, const Real& real) {
    if (!AsyncBlocks::any()) return real();
    const Block* const block = blocks_.find(address);
    Context* const context = block == nullptr ? registry_.current() : block->context;
    return noted(context, [&] { return blocks_.free_by_driver(address, real); });
  }
  /// Makes a call of the driver's in the current context, other than these. The program knows its
  /// error then, so that nothing served later may hide it (I7).
  template <typename Real>
  CUresult noted(const Real& real) {
    return is_on() ? noted(registry_.current(), real) : real();
  }

  /// The driver has handed `address` out: a record of it is of memory that was freed by a route
  /// that cupool does not see.
  void forget_stale(CUdeviceptr address);

  /// The records of all blocks.
  AsyncBlocks& blocks() { return blocks_; }
  /// Idle blocks.
  AsyncIdle& idle() { return idle_; }

  /// The stream is about to be destroyed.
  void stream_ends(CUstream stream) {
    const bool has_none = stream == nullptr || cuda::is_default(stream);
    if (caches_.any() && !has_none) idle_.stream_ends(stream);
  }
  /// The program is about to set the current pool of a device, perhaps before the engine's start.
  static void distrust_current_pools() {
    distrusted_.store(true);
    on_.store(false);
  }
  /// Nothing is served any more. What is idle goes back to the driver.
  void stop();

  /// The program is about to trim this pool: idle blocks of it go back.
  void give_back_of(CUmemoryPool pool);
  /// Bytes by which the driver's figure of the pool's use exceeds what the program uses, if this is
  /// a default pool with blocks.
  std::uint64_t unused_bytes(CUmemoryPool pool);

 private:
  using Known = detail::KnownStream;

  template <typename Real>
  CUresult noted(Context* context, const Real& real) {
    const std::uint64_t life = context == nullptr ? 0 : context->incarnation();
    const CUresult result = real();
    if (result != CUDA_SUCCESS) all_idle_.driver_refused(context, life, result);
    return result;
  }
  struct Request {
    Context* context = nullptr;
    std::uint64_t life = 0;
    std::size_t bytes = 0;
    std::uint64_t capacity = 0;
    StreamCaches::Place place;
  };

  static Known* pair_of(CUstream stream) {
    const auto mixed = reinterpret_cast<std::uintptr_t>(stream) * std::uint64_t{0x9e3779b97f4a7c15};
    return &detail::known_streams[mixed >> 62 << 1];
  }
  static const Known& known_of(CUstream stream) {
    const Known* const pair = pair_of(stream);
    return pair[0].stream == stream ? pair[0] : pair[1];
  }
  // An unused entry has no stream.
  static bool is_known(const Known& known, CUstream stream, const Context* context) {
    return known.stream == stream && known.context == context;
  }
  bool is_default_pool(CUmemoryPool pool, Context& context) const {
    const auto device = static_cast<std::size_t>(context.device().ordinal());
    return pool == nullptr || pool == pools_[device].load(std::memory_order_relaxed);
  }
  // What may change between two calls; find_place() has the rest.
  bool serves(const Context& context) const {
    return is_on() && Serving::open() && context.usable() && runs_no_host_functions();
  }
  bool may_allocate(Request* request, std::size_t bytes, CUmemoryPool pool, CUstream stream);
  StreamCaches::Place find_place(Context& context, CUstream stream);
  bool is_non_blocking(CUstream stream) const;
  bool may_have_cache(Context& context, CUstream stream);
  CUdeviceptr pop(const Request& request);
  void adopt(const Request& request, CUdeviceptr address);
  std::nullopt_t drop_lost(Block& block);
  std::optional<CUresult> free_slowly(Block& block, std::uint64_t word, CUstream stream);
  int device_of(CUmemoryPool pool) const;

  static inline std::atomic<bool> on_{false};
  static inline std::atomic<bool> distrusted_{false};

  const cuda::Driver& driver_;
  ContextRegistry& registry_;
  FreePolicy& policy_;
  AsyncBlocks blocks_;
  StreamCaches caches_;
  AsyncIdle idle_;
  IdleMemory& all_idle_;
  std::atomic<std::uint64_t> peak_{0};  ///< bytes of blocks that the program had
  /// The default pools of devices, as far as their streams have caches.
  std::array<std::atomic<CUmemoryPool>, stats::kMaxDevices> pools_{};
};

}  // namespace cupool::engine
