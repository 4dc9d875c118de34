// SPDX-License-Identifier: Apache-2.0
// What kind of stream a handle names.
#pragma once

#include <optional>

#include "cuda/driver.h"

namespace cupool::cuda {

/// Whether `stream` is the explicit handle of a default stream: another stream in each context.
inline bool is_default(CUstream stream) {
  return stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

/// Whether `stream`, an explicit handle, is a non-blocking one. The others and the legacy stream of
/// their context wait for one another. Empty: the driver does not say.
inline std::optional<bool> is_non_blocking(const Driver& driver, CUstream stream) {
  if (is_default(stream)) return false;
  unsigned int flags = 0;
  if (driver.cuStreamGetFlags == nullptr ||
      driver.cuStreamGetFlags(stream, &flags) != CUDA_SUCCESS) {
    return std::nullopt;
  }
  return (flags & CU_STREAM_NON_BLOCKING) != 0;
}

}  // namespace cupool::cuda
