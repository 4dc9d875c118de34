// SPDX-License-Identifier: Apache-2.0
// The driver tells host memory from device memory by its address.
#include "engine/reclaim/host_targets.h"

#include <algorithm>

#include "engine/reclaim/pinned_memory.h"
#include "util/mutation.h"

namespace cupool::engine {

std::atomic<bool> HostTargets::any_{false};
std::atomic<CUmemoryPool> HostTargets::last_pool_{nullptr};

bool HostTargets::is_device_memory(const cuda::Driver& driver, CUdeviceptr address) {
  unsigned type = CU_MEMORYTYPE_HOST;
  const CUresult result =
      driver.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  return result == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE;
}

void HostTargets::note_pool_block(const cuda::Driver& driver, CUmemoryPool pool,
                                  CUdeviceptr address) {
  if (PinnedMemory::may_be_elsewhere() || last_pool_.load(std::memory_order_relaxed) == pool)
    return;
  if (!is_device_memory(driver, address)) {
    made();
    PinnedMemory::is_elsewhere();
  }
  last_pool_.store(pool, std::memory_order_relaxed);
}

bool HostTargets::include(const cuda::Driver& driver, CUdeviceptr address) {
  return any() && !is_device_memory(driver, address) &&
         !CUPOOL_MUTATED("ignores-fills-of-host-memory");
}

bool HostTargets::is_side(const cuda::Driver& driver, CUmemorytype type, CUdeviceptr device) {
  return type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_UNIFIED ||
         (type == CU_MEMORYTYPE_DEVICE && include(driver, device));
}

bool HostTargets::in_operations(const cuda::Driver& driver, unsigned count,
                                const CUstreamBatchMemOpParams* operations) {
  return std::any_of(operations, operations + count, [&](const auto& one) {
    switch (one.operation) {
      case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      case CU_STREAM_MEM_OP_BARRIER:
        return false;
      default:  // all others have the address at the same offset
        return include(driver, one.writeValue.address);
    }
  });
}

}  // namespace cupool::engine
