// SPDX-License-Identifier: Apache-2.0
// Which of the program's copies, fills and stream memory operations touch host memory (contract 2).
// They take device pointers, and page-locked memory has such pointers too.
#pragma once

#include <atomic>

#include "cuda/driver.h"

namespace cupool::engine {

/// Whether the process has had page-locked memory of its own: a pointer passed as device memory may
/// then be host memory. Thread-safe; may be called before the rest of cupool has started.
class HostTargets {
 public:
  /// Called before the program uses page-locked memory of its own.
  static void made() {
    if (!any()) any_.store(true, std::memory_order_relaxed);
  }
  static bool any() { return any_.load(std::memory_order_relaxed); }

  enum class PoolMemory { unknown, device, host, managed };

  /// What `address`, of a pool of the program's own, consists of. Unknown: the driver does not
  /// tell.
  static PoolMemory memory_of(const cuda::Driver& driver, CUdeviceptr address);
  /// The pools for which what follows from their memory has been noted. The last ones at least.
  static bool knows(CUmemoryPool pool);
  static void remember(CUmemoryPool pool);
  /// The program destroys `pool`, whose handle the next pool may get.
  static void forget(CUmemoryPool pool);
  static void forget_pools();

  /// The program has made a pool of its own the current one of a device.
  static void has_own_current_pool() { own_current_pool_.store(true, std::memory_order_relaxed); }
  static bool may_have_own_current_pool() {
    return own_current_pool_.load(std::memory_order_relaxed);
  }

  /// There is host memory that no table has (PinnedMemory::is_elsewhere()).
  static void host_is_elsewhere();
  /// A graphics driver's memory is mapped at `address`: it may be host memory.
  static void note_foreign(const cuda::Driver& driver, CUdeviceptr address);

  /// Whether `address` is host memory for all that is known: 0.07 us once there is any. A pointer
  /// unknown to the driver is not device memory.
  static bool include(const cuda::Driver& driver, CUdeviceptr address);

  /// Whether a copy reads or writes host memory: CUDA_MEMCPY2D, CUDA_MEMCPY3D or
  /// CUDA_MEMCPY3D_PEER. Null, which the driver refuses: no.
  template <typename Copy>
  static bool in_copy(const cuda::Driver& driver, const Copy* copy) {
    return copy != nullptr && (is_side(driver, copy->srcMemoryType, copy->srcDevice) ||
                               is_side(driver, copy->dstMemoryType, copy->dstDevice));
  }

  /// Whether one of these stream memory operations waits for or writes a word of host memory.
  static bool in_operations(const cuda::Driver& driver, unsigned count,
                            const CUstreamBatchMemOpParams* operations);

 private:
  /// Whether one side of a copy is host memory: by its type, or by its address if the type is
  /// device memory.
  static bool is_side(const cuda::Driver& driver, CUmemorytype type, CUdeviceptr device);
  static bool is_device_memory(const cuda::Driver& driver, CUdeviceptr address);

  // Read by fills, copies and allocations, so nothing that is written often is beside them.
  struct alignas(128) Known {
    std::atomic<CUmemoryPool> pools[8];
    std::atomic<unsigned> next;
  };

  static std::atomic<bool> any_;
  static inline std::atomic<bool> own_current_pool_{false};
  static Known known_;
};

}  // namespace cupool::engine
