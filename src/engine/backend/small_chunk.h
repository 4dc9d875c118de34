// SPDX-License-Identifier: Apache-2.0
// A small block of the driver's own, kept while pools serve small blocks. The driver takes small
// memory from chunks of 2 MiB: the program's small blocks, code, and memory for launches. Without
// cupool, the program's first small block opens such a chunk. On a full device, launches depend on
// the rest of that chunk. Chunks of pools are not shared with them.
#pragma once

#include <mutex>

#include "cuda/driver.h"
#include "cuda/scopes.h"
#include "engine/block/size_class.h"
#include "util/lock_order.h"

namespace cupool::engine {

/// One per context. Thread-safe. The lock is held across an allocation, which does not wait for the
/// GPU (I4), but not across the free, which does.
class SmallChunk {
 public:
  static constexpr std::uint64_t kBytes = 2ull << 20;

  SmallChunk(const cuda::Driver& driver, CUcontext context) : driver_(driver), context_(context) {}

  /// Opens the chunk if it is not open. May fail on a full device.
  void open() {
    const std::lock_guard lock(mutex_);
    if (block_ != 0) return;
    const cuda::RelaxedCaptureScope relaxed(driver_);
    const cuda::ContextScope scope(driver_, context_);
    if (!scope.ok() || (driver_.cuMemAlloc_v2(&block_, kAlignment) != CUDA_SUCCESS &&
                        driver_.cuMemAlloc_v2(&block_, kAlignment) != CUDA_SUCCESS)) {
      block_ = 0;
    }
  }

  /// Frees the block; true if there was one. Waits for the context's work.
  bool close() {
    CUdeviceptr block = 0;
    {
      const std::lock_guard lock(mutex_);
      std::swap(block, block_);
    }
    if (block == 0) return false;
    const cuda::RelaxedCaptureScope relaxed(driver_);
    const cuda::ContextScope scope(driver_, context_);
    return scope.ok() && (driver_.cuMemFree_v2(block) == CUDA_SUCCESS ||
                          driver_.cuMemFree_v2(block) == CUDA_SUCCESS);  // a refusal may pass
  }

  /// Whether a call that ran out of memory may succeed once the chunk is closed. `wanted_bytes`: of
  /// that call; 0: not known, which is not enough. Call in a visit.
  bool may_decide(std::uint64_t wanted_bytes) const {
    const cuda::RelaxedCaptureScope relaxed(driver_);
    const cuda::ContextScope scope(driver_, context_);
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    const std::uint64_t in_chunks = (wanted_bytes + kBytes - 1) / kBytes * kBytes;
    return wanted_bytes != 0 && scope.ok() &&
           driver_.cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS &&
           free_bytes < in_chunks && free_bytes + kBytes >= wanted_bytes;
  }

  bool is_open() const { return block() != 0; }
  /// Whether `address` is this block, which does not belong to the program.
  bool holds(CUdeviceptr address) const { return address != 0 && block() == address; }

  /// The context is gone, with the memory.
  void clear() {
    const std::lock_guard lock(mutex_);
    block_ = 0;
  }

 private:
  CUdeviceptr block() const {
    const std::lock_guard lock(mutex_);
    return block_;
  }

  const cuda::Driver& driver_;
  const CUcontext context_;
  mutable util::Ranked<util::LockRank::small_chunk> mutex_;
  CUdeviceptr block_ = 0;
};

}  // namespace cupool::engine
