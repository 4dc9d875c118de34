// SPDX-License-Identifier: Apache-2.0
// The C interface: guards and forwards. No exception crosses it.
#include "cupool/cupool.h"

#include <cstddef>
#include <cstdint>

#include "entry/hooks.h"
#include "process/requests.h"

extern "C" {

CUPOOL_EXPORT const char* cupool_version(void) {
  return CUPOOL_VERSION;
}

CUPOOL_EXPORT int cupool_snapshot(int device, cupool_figures* figures) {
  // The size itself and one figure: less would return nothing.
  constexpr std::uint64_t kLeast = offsetof(cupool_figures, rounding_bytes);
  if (figures == nullptr || figures->size < kLeast) return CUPOOL_INVALID_ARGUMENT;
  return cupool::process::snapshot(device, figures);
}

CUPOOL_EXPORT int cupool_dump(const char* path) {
  return cupool::process::dump(path);
}

CUPOOL_EXPORT int cupool_trim(int device, std::uint64_t* released_bytes) {
  return cupool::process::trim(device, released_bytes);
}

}  // extern "C"
