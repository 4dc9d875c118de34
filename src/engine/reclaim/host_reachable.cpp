// SPDX-License-Identifier: Apache-2.0
// Managed and zero-copy allocations, by start address.
#include "engine/reclaim/host_reachable.h"

#include <new>

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
  if (any() || last_pool_.load(std::memory_order_relaxed) == pool) return;
  if (!is_device_memory(driver, address)) made();
  last_pool_.store(pool, std::memory_order_relaxed);
}

bool HostTargets::include(const cuda::Driver& driver, CUdeviceptr address) {
  return any() && !is_device_memory(driver, address);
}

void HostReachable::add(Kind kind, std::uintptr_t start, const Memory& memory) noexcept {
  Ranges& ranges = of(kind);
  const std::lock_guard lock(mutex_);
  try {
    if (!ranges.at.emplace(start, memory).second) return;
  } catch (const std::bad_alloc&) {
    // Counted for good: needless waits are better than a missing one.
  }
  ranges.count.fetch_add(1, std::memory_order_relaxed);
  ranges.bytes.fetch_add(memory.bytes, std::memory_order_relaxed);
}

std::optional<HostReachable::Memory> HostReachable::take(Kind kind, std::uintptr_t start) {
  if (!any(kind)) return std::nullopt;
  Ranges& ranges = of(kind);
  const std::lock_guard lock(mutex_);
  const auto found = ranges.at.find(start);
  if (found == ranges.at.end()) return std::nullopt;
  const Memory memory = found->second;
  uncount(ranges, memory);
  ranges.at.erase(found);
  return memory;
}

bool HostReachable::holds(Kind kind, std::uintptr_t start) {
  if (!any(kind)) return false;
  const std::lock_guard lock(mutex_);
  return of(kind).at.count(start) != 0;
}

void HostReachable::clear() {
  const std::lock_guard lock(mutex_);
  for (Ranges& ranges : ranges_) {
    ranges.at.clear();
    ranges.count.store(0, std::memory_order_relaxed);
    ranges.bytes.store(0, std::memory_order_relaxed);
  }
}

}  // namespace cupool::engine
