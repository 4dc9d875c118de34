// SPDX-License-Identifier: Apache-2.0
// Which frees the driver orders itself, and a wait for those that it does not.
#include "engine/serve/unordered_free.h"

#include "engine/context/behind_frees.h"
#include "engine/context/thread_order.h"
#include "util/mutation.h"

namespace cupool::engine {
namespace {

template <typename Value>
bool has(const cuda::Driver& driver, CUpointer_attribute attribute, CUdeviceptr address) {
  Value value{};
  return driver.cuPointerGetAttribute(&value, attribute, address) == CUDA_SUCCESS &&
         value != Value{};
}

// Memory of a pool is, and perhaps what a graph has allocated, for which the driver names no pool:
// it is neither plain memory, which can be shared the old way, nor managed.
bool is_free_at_once(const cuda::Driver& driver, CUdeviceptr address) {
  unsigned type = 0;
  if (driver.cuPointerGetAttribute == nullptr ||
      driver.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) !=
          CUDA_SUCCESS) {
    return false;
  }
  return has<CUmemoryPool>(driver, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) ||
         !(has<unsigned>(driver, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address) ||
           has<unsigned>(driver, CU_POINTER_ATTRIBUTE_IS_MANAGED, address));
}

}  // namespace

CUresult free_unordered(const cuda::Driver& driver, CUdeviceptr address) {
  const auto now = [&] { return driver.cuMemFree_v2(address); };
  if (!ThreadOrder::is_on() || CUPOOL_MUTATED("frees-memory-of-pools-at-once")) return now();
  if (ThreadOrder::is_complete(driver) || !is_free_at_once(driver, address)) return now();
  return take_away(driver, now);
}

}  // namespace cupool::engine
