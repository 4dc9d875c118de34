// SPDX-License-Identifier: Apache-2.0
// The records of stream-ordered blocks: which memory at which address is cupool's, and what the
// program may see of it.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/block/pointer_map.h"
#include "engine/context/context.h"
#include "engine/serve/found_memory.h"

namespace cupool::engine {

/// One per process. Thread-safe.
class AsyncBlocks {
 public:
  /// Whether there may be any. One load.
  static bool any() { return any_.load(std::memory_order_relaxed); }
  /// Bytes of all blocks.
  std::uint64_t bytes() const { return held_.load(std::memory_order_relaxed); }

  /// The block that begins at `address`, in any state, or null.
  Block* find(CUdeviceptr address) const { return any() ? map_.find(address) : nullptr; }

  /// Records memory that the driver has allocated in `life` of the context, as a live block.
  void adopt(Context& context, std::uint64_t life, CUdeviceptr address, std::uint64_t capacity,
             std::uint64_t requested);
  /// Drops the record of a block that the driver is about to free: another thread may get the
  /// address at once. False: another thread has dropped it, and the memory is its own, or nobody's.
  bool forget(const Block& block) { return forget(block, block.address); }
  /// The same where the record may be another block's by now: it was this address's.
  bool forget(const Block& block, CUdeviceptr address);
  /// Claims a live block whose state was `word`, outside the caches.
  static bool claim(Block& block, std::uint64_t word);
  /// Drops a block of an ended context that the caller has claimed for a cache.
  void drop_lost(Block& block);
  /// Undoes forget(). False: there is no host memory for it, so its memory is the driver's.
  bool remember(Block& block);

  /// Makes the driver's free of `address`, which may be a block.
  template <typename Real>
  CUresult free_by_driver(CUdeviceptr address, const Real& real) {
    Given given;
    if (!give_up(address, &given)) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = real();
    if (given.block != nullptr) given_up(given, result == CUDA_SUCCESS);
    return result;
  }

  /// The memory that begins at `base` as the program sees it at `address`.
  FoundMemory find(CUdeviceptr base, CUdeviceptr address) const;
  /// The memory is known outside CUDA's ordering: the driver frees it.
  void mark_shared_outside(CUdeviceptr base);

  /// The driver has ended `context`. `alone`: see ContextEnd.
  void context_gone(Context& context, bool alone);

 private:
  // A block in a call of the driver's.
  struct Given {
    Block* block = nullptr;  ///< null: not cupool's
    std::uint64_t life = 0;  ///< of its context
  };

  void count(Context& context, std::uint64_t capacity, int blocks);
  bool give_up(CUdeviceptr address, Given* given);
  void given_up(const Given& given, bool freed);

  static inline std::atomic<bool> any_{false};
  PointerMap map_;
  std::atomic<std::uint64_t> held_{0};
};

}  // namespace cupool::engine
