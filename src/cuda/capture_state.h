// SPDX-License-Identifier: Apache-2.0
// Whether a stream captures, as the driver says.
#pragma once

#include <optional>

#include "cuda/driver.h"

namespace cupool::cuda {

/// Whether `stream` captures, even if its capture is invalid. Empty: the driver refuses to say.
/// False with a driver that has no captures.
inline std::optional<bool> is_capturing(const Driver& driver, CUstream stream) {
  if (driver.cuStreamIsCapturing == nullptr) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (driver.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS) return std::nullopt;
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace cupool::cuda
