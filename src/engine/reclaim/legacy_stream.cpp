// SPDX-License-Identifier: Apache-2.0
// Whether the process has a non-blocking stream.
#include "engine/reclaim/legacy_stream.h"

#include "util/mutation.h"

namespace cupool::engine {

std::atomic<bool> LegacyStream::alone_{true};

bool LegacyStream::covers_context() {
  return alone_.load(std::memory_order_acquire) || CUPOOL_MUTATED("legacy-wait-covers-all");
}

}  // namespace cupool::engine
