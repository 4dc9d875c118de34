// SPDX-License-Identifier: Apache-2.0
// The driver tells host memory from device memory by its address.
#include "engine/reclaim/host_targets.h"

#include <algorithm>
#include <iterator>

#include "engine/reclaim/pinned_memory.h"
#include "util/log.h"
#include "util/mutation.h"

namespace cupool::engine {

std::atomic<bool> HostTargets::any_{false};
HostTargets::Known HostTargets::known_{};

bool HostTargets::is_device_memory(const cuda::Driver& driver, CUdeviceptr address) {
  unsigned type = CU_MEMORYTYPE_HOST;
  const CUresult result =
      driver.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  return result == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE;
}

HostTargets::PoolMemory HostTargets::memory_of(const cuda::Driver& driver, CUdeviceptr address) {
  unsigned managed = 0;
  unsigned type = 0;
  const auto ask = [&](CUpointer_attribute attribute, unsigned* value) {
    return driver.cuPointerGetAttribute(value, attribute, address) == CUDA_SUCCESS;
  };
  if (!ask(CU_POINTER_ATTRIBUTE_IS_MANAGED, &managed) ||
      !ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, &type)) {
    return PoolMemory::unknown;
  }
  if (managed != 0) return PoolMemory::managed;
  return type == CU_MEMORYTYPE_DEVICE ? PoolMemory::device : PoolMemory::host;
}

// What was noted of the pool is seen by whoever finds it here.
bool HostTargets::knows(CUmemoryPool pool) {
  return std::any_of(std::begin(known_.pools), std::end(known_.pools), [&](const auto& each) {
    return each.load(std::memory_order_acquire) == pool;
  });
}

void HostTargets::remember(CUmemoryPool pool) {
  const unsigned place = known_.next.fetch_add(1, std::memory_order_relaxed);
  known_.pools[place % std::size(known_.pools)].store(pool, std::memory_order_release);
}

void HostTargets::forget(CUmemoryPool pool) {
  for (auto& each : known_.pools) {
    if (each.load(std::memory_order_relaxed) == pool)
      each.store(nullptr, std::memory_order_relaxed);
  }
}

void HostTargets::forget_pools() {
  for (auto& each : known_.pools) each.store(nullptr, std::memory_order_relaxed);
}

void HostTargets::note_foreign(const cuda::Driver& driver, CUdeviceptr address) {
  if (!is_device_memory(driver, address)) host_is_elsewhere();
}

void HostTargets::host_is_elsewhere() {
  made();
  if (PinnedMemory::is_elsewhere()) {
    CUPOOL_LOG(info,
               "there is host memory of a pool, of cuMemCreate or from elsewhere: frees wait for "
               "kernels");
  }
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
