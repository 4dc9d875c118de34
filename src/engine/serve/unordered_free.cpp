// SPDX-License-Identifier: Apache-2.0
// A wait before frees that the driver may not order itself. Which ones these are is not asked: of
// memory that a graph has allocated the driver names no pool, and before a free that waits anyway
// another wait takes no time.
#include "engine/serve/unordered_free.h"

#include "engine/context/behind_frees.h"
#include "engine/context/thread_order.h"
#include "util/mutation.h"

namespace cupool::engine {

CUresult free_unordered(const cuda::Driver& driver, CUdeviceptr address) {
  const auto now = [&] { return driver.cuMemFree_v2(address); };
  if (!ThreadOrder::is_on() || CUPOOL_MUTATED("frees-memory-of-pools-at-once")) return now();
  if (ThreadOrder::is_complete(driver)) return now();
  return take_away(driver, now);
}

}  // namespace cupool::engine
