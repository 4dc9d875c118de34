// SPDX-License-Identifier: Apache-2.0
// The records of page-locked blocks: which memory at which address is cupool's, and what the
// program may see of it.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/block/pointer_map.h"
#include "engine/context/context.h"
#include "engine/serve/found_memory.h"

namespace cupool::engine {

/// One per process. Thread-safe.
class HostBlocks {
 public:
  explicit HostBlocks(const cuda::Driver& driver) : driver_(driver) {}

  /// Whether there are any. One load.
  bool any() const { return bytes() != 0; }
  std::uint64_t bytes() const { return held_.load(std::memory_order_relaxed); }

  /// The block that begins at `host`, in any state, or null.
  Block* find(const void* host) const {
    return any() ? map_.find(reinterpret_cast<CUdeviceptr>(host)) : nullptr;
  }
  static void* address_of(const Block& block) {
    return reinterpret_cast<void*>(std::uint64_t{block.address});
  }

  /// The page-locked memory that contains `address`, as the program sees it. `base`: where it
  /// begins.
  FoundMemory find(CUdeviceptr base, CUdeviceptr address) const;
  FoundMemory find_around(CUdeviceptr address) const;

  /// The block that contains `address` is known outside CUDA's ordering (SYNC_MEMOPS).
  void mark_shared_outside(CUdeviceptr address);

  /// Records memory that the driver has allocated for `bytes`, as a live block, whose state is
  /// `word`: once known, it may be another's. Null: out of host memory. `tag`: host_tag().
  Block* adopt(Context& context, void* address, std::size_t bytes, std::uint8_t tag,
               std::uint64_t* word);
  /// Drops the record of a block that the driver is about to free: another thread may get the
  /// address at once. False: another thread has dropped it, and the memory is its own, or nobody's.
  bool forget(const Block& block) { return forget(block, block.address); }
  /// The same where the record may be another block's by now: it was this address's.
  bool forget(const Block& block, CUdeviceptr address);
  /// Undoes forget(). False: out of host memory. The memory is the driver's to free.
  bool remember(Block& block);

  /// Has the driver free a block that no list holds, which waits for the GPU. The caller is in a
  /// visit.
  void release(Block& block);

  /// The driver has ended `context`, with its page-locked memory. `cached`: what no list of the
  /// cache holds any more. `alone`: see ContextEnd.
  void context_gone(Context& context, BlockList& cached, bool alone);

 private:
  void count(Context& context, std::uint64_t capacity, std::int64_t sign);

  const cuda::Driver& driver_;
  PointerMap map_;
  std::atomic<std::uint64_t> held_{0};
};

}  // namespace cupool::engine
