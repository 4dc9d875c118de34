// SPDX-License-Identifier: Apache-2.0
// Pools that other processes can import: whether this driver supports them safely, and the data
// that an importer needs for a block (docs/design.md, IPC).
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "cuda/driver.h"
#include "engine/backend/backend.h"
#include "engine/backend/pool_device.h"
#include "engine/backend/pool_kind.h"
#include "util/descriptor.h"
#include "util/lock_order.h"

namespace cupool::engine {

/// One per pair of pools. Thread-safe, except for the functions that the pair calls to create a
/// pool.
class PoolSharing {
 public:
  PoolSharing(const cuda::Driver& driver, const PoolDevice& device)
      : driver_(driver), device_(device) {}

  /// Whether a block of `capacity` can be shared with other processes.
  bool can_share(std::uint64_t capacity) const;
  CUresult share(std::uint64_t capacity, CUdeviceptr address, SharedMemory* memory);

  /// Whether to create a pool that can be exported. The caller holds the pair's lock.
  bool wants_handles();
  /// Whether this exportable pool, which is empty, may be used. If not, no further one is wanted.
  /// CUDA_ERROR_OUT_OF_MEMORY: nothing is known, for want of memory. `stream` must be empty. The
  /// caller holds the pair's lock.
  CUresult accepts(PoolKind kind, CUmemoryPool pool, CUstream stream);

 private:
  bool handles_supported() const;
  CUresult gives_back(CUmemoryPool pool, CUstream stream) const;

  const cuda::Driver& driver_;
  const PoolDevice device_;
  // Determined once per device.
  enum class Exportable { unknown, yes, no } exportable_ = Exportable::unknown;
  std::atomic<CUmemoryPool> pools_[kPoolKinds] = {};  ///< null: no shareable pool
  util::Ranked<util::LockRank::pool_sharing> mutex_;
  util::Descriptor files_[kPoolKinds];  ///< guarded by the mutex
};

}  // namespace cupool::engine
