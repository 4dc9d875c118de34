// SPDX-License-Identifier: Apache-2.0
// Serves an allocation from the thread's cache, the shared cache, reclaimed blocks, or fresh
// memory.
#pragma once

#include <optional>

#include "engine/block/pointer_map.h"
#include "engine/context/context_registry.h"
#include "engine/serve/out_of_memory.h"
#include "engine/serve/peak_sampler.h"
#include "engine/serve/pool_preparation.h"

namespace cupool::engine {

/// Thread-safe.
class Allocations {
 public:
  Allocations(ContextRegistry& registry, PointerMap& blocks, IdleMemory& idle,
              OutOfMemory& out_of_memory, PoolPreparation& preparation, PeakSampler& peak)
      : registry_(registry),
        blocks_(blocks),
        idle_(idle),
        out_of_memory_(out_of_memory),
        preparation_(preparation),
        peak_(peak) {}

  /// Serves `bytes` in the current context from a cache, else with fresh memory. Gives idle memory
  /// back if needed, within `patience`. Sets `*address` on success. `std::nullopt`: cupool does not
  /// serve this request; the caller makes the real call.
  std::optional<CUresult> try_allocate(std::uint64_t bytes, CUdeviceptr* address,
                                       Patience& patience);

  /// Serves `bytes` only from `context`'s caches; for the runtime short cuts. False: no cached
  /// block, no side effect.
  bool try_allocate_cached(Context& context, std::uint64_t bytes, CUdeviceptr* address);

 private:
  static bool can_serve(Context& context, std::uint64_t bytes);
  std::optional<CUresult> allocate_otherwise(Context* context, std::uint64_t bytes,
                                             CUdeviceptr* address, Patience& patience);
  // Each returns the address of a block that it has made live under the lock of its cache, or in a
  // visit: once the context may end, the record may be another block's. 0: none.
  static CUdeviceptr allocate_counted(Context& context, ThreadCache& cache, std::uint64_t bytes);
  CUdeviceptr allocate_own(Context& context, std::uint64_t bytes);
  CUdeviceptr reclaim_and_allocate(Context& context, ThreadCache& cache, std::uint64_t bytes);
  CUdeviceptr allocate_shared(Context& context, std::uint64_t bytes, stats::Counter* served_by);
  CUdeviceptr allocate_new(Context& context, std::uint64_t bytes, Patience& patience);
  // Memory of the backend, and the life of its context then.
  struct Fresh {
    CUdeviceptr address = 0;
    BlockSource source = BlockSource::pool;
    std::uint64_t life = 0;
  };
  CUdeviceptr adopt(Context& context, std::uint64_t bytes, const Fresh& fresh);
  static CUdeviceptr make_live(Block& block, std::uint64_t bytes);
  // In a visit:
  static Block* pop_shared(Context& context, ThreadCache* cache, std::uint64_t capacity);
  Block* pop_or_reclaim(Context& context, std::uint64_t capacity, stats::Counter* served_by);
  CUresult allocate_fresh(Context& context, std::uint64_t capacity, Fresh* fresh);
  static CUresult allocate_last(Context& context, std::uint64_t capacity, Fresh* fresh);

  ContextRegistry& registry_;
  PointerMap& blocks_;
  IdleMemory& idle_;
  OutOfMemory& out_of_memory_;
  PoolPreparation& preparation_;
  PeakSampler& peak_;
};

}  // namespace cupool::engine
