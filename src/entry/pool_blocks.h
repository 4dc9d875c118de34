// SPDX-License-Identifier: Apache-2.0
// Memory of the program's own pools, which is not device memory always (contract 2).
#pragma once

#include "cuda/capture_state.h"
#include "engine/reclaim/host_targets.h"
#include "engine/reclaim/serving.h"
#include "process/lifecycle.h"

namespace cupool::entry {

/// The program has got `address` of `pool`, one of its own. Asks the driver once for each pool. A
/// pool is known only when all that follows has been noted.
inline void note_pool_block(const cuda::Driver& driver, CUmemoryPool pool, CUdeviceptr address) {
  using engine::HostTargets;
  if (address == 0 || HostTargets::knows(pool)) return;
  switch (HostTargets::memory_of(driver, address)) {
    case HostTargets::PoolMemory::unknown:
      return;
    case HostTargets::PoolMemory::device:
      break;
    case HostTargets::PoolMemory::host:
      HostTargets::host_is_elsewhere();
      break;
    case HostTargets::PoolMemory::managed: {
      engine::Allocator* const allocator = process::started_engine();
      if (allocator == nullptr) return;
      allocator->pass_through().managed_pool_used();
    }
  }
  HostTargets::remember(pool);
}

/// The same after an allocation in `stream`, an explicit handle. While it captures, the address is
/// a graph's, and says nothing of the pool.
inline void note_pool_block(const cuda::Driver& driver, CUmemoryPool pool, CUdeviceptr address,
                            CUstream stream) {
  const bool captures =
      engine::Serving::any_capture() && cuda::is_capturing(driver, stream).value_or(true);
  if (!captures) note_pool_block(driver, pool, address);
}

/// The same of the device's current pool, once the program may have set one of its own.
inline void note_current_pool_block(const cuda::Driver& driver, CUdeviceptr address,
                                    CUstream stream) {
  if (!engine::HostTargets::may_have_own_current_pool()) return;
  CUmemoryPool pool = nullptr;
  if (driver.cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) ==
          CUDA_SUCCESS &&
      pool != nullptr) {
    note_pool_block(driver, pool, address, stream);
  }
}

}  // namespace cupool::entry
