// SPDX-License-Identifier: Apache-2.0
// Which frees the driver orders itself, and a wait for those that it does not.
#include "engine/serve/unordered_free.h"

#include "engine/context/behind_frees.h"
#include "engine/context/thread_order.h"
#include "util/mutation.h"

namespace cupool::engine {
namespace {

bool is_of_a_pool(const cuda::Driver& driver, CUdeviceptr address) {
  CUmemoryPool pool = nullptr;
  return driver.cuPointerGetAttribute != nullptr &&
         driver.cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) ==
             CUDA_SUCCESS &&
         pool != nullptr;
}

}  // namespace

CUresult free_unordered(const cuda::Driver& driver, CUdeviceptr address) {
  const auto now = [&] { return driver.cuMemFree_v2(address); };
  if (!ThreadOrder::is_on() || CUPOOL_MUTATED("frees-memory-of-pools-at-once")) return now();
  if (ThreadOrder::is_complete(driver) || !is_of_a_pool(driver, address)) return now();
  return take_away(driver, now);
}

}  // namespace cupool::engine
