// SPDX-License-Identifier: Apache-2.0
// Which frees the driver orders itself, and a wait for those that it does not.
#include "engine/serve/unordered_free.h"

#include "cuda/scopes.h"
#include "engine/context/behind_frees.h"
#include "engine/context/thread_order.h"
#include "engine/reclaim/lane_mark.h"
#include "engine/reclaim/serving.h"
#include "util/mutation.h"
#include "util/uncancelled.h"

namespace cupool::engine {
namespace {

bool is_of_a_pool(const cuda::Driver& driver, CUdeviceptr address) {
  CUmemoryPool pool = nullptr;
  return driver.cuPointerGetAttribute != nullptr &&
         driver.cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) ==
             CUDA_SUCCESS &&
         pool != nullptr;
}

// In a lane, other threads free as well, and the mark goes on for as long as they do. The lane's
// own order is behind all that it covers now, without a wait. False: the memory is as it was, since
// the driver refuses a stream of another device, say.
bool free_in_lane(const cuda::Driver& driver, CUdeviceptr address) {
  if (driver.cuMemFreeAsync == nullptr || Serving::any_capture()) return false;
  const LaneMark::Use use;  // no capture of the stream begins, and nobody destroys it
  const auto [context, stream] = LaneMark::place();
  if (stream == nullptr || !Serving::open_for_certain()) return false;
  const cuda::ContextScope scope(driver, context);
  return scope.ok() && driver.cuMemFreeAsync(address, stream) == CUDA_SUCCESS;
}

}  // namespace

CUresult free_unordered(const cuda::Driver& driver, CUdeviceptr address) {
  const auto now = [&] { return driver.cuMemFree_v2(address); };
  if (!ThreadOrder::is_on() || CUPOOL_MUTATED("frees-memory-of-pools-at-once")) return now();
  if (ThreadOrder::is_complete(driver) || !is_of_a_pool(driver, address)) return now();
  const util::Uncancelled throughout;
  wait_for_frees(
      driver, [] { return false; }, ThreadOrder::Of::own);
  if (ThreadOrder::is_complete(driver)) return now();
  if (free_in_lane(driver, address)) return CUDA_SUCCESS;
  return take_away(driver, now);
}

}  // namespace cupool::engine
