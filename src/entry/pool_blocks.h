// SPDX-License-Identifier: Apache-2.0
// Memory of the program's own pools, which is not device memory always (contract 2).
#pragma once

#include "engine/reclaim/host_targets.h"
#include "process/lifecycle.h"

namespace cupool::entry {

/// The program has got `address` from a pool of its own, whose memory may be host memory, or
/// managed.
inline void note_pool_block(const cuda::Driver& driver, CUmemoryPool pool, CUdeviceptr address) {
  const auto memory = engine::HostTargets::note_pool_block(driver, pool, address);
  if (__builtin_expect(memory != engine::HostTargets::PoolMemory::managed, 1)) return;
  if (engine::Allocator* const allocator = process::started_engine()) {
    allocator->pass_through().managed_pool_used(pool);
  }
}

}  // namespace cupool::entry
