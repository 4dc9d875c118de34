// SPDX-License-Identifier: Apache-2.0
// Whether a stream captures, as the driver says.
#pragma once

#include <optional>

#include "cuda/driver.h"

namespace cupool::cuda {

/// Whether `stream` captures, even if its capture is invalid. Empty: the driver refuses to say, and
/// does so twice. False with a driver that has no captures. Thread-safe.
[[gnu::noinline]] inline std::optional<bool> is_capturing(const Driver& driver, CUstream stream) {
  if (driver.cuStreamIsCapturing == nullptr) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  // A refusal may pass, and a wrong guess would end the program's capture.
  const bool is_told = driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS ||
                       driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS;
  return is_told ? std::optional<bool>(status != CU_STREAM_CAPTURE_STATUS_NONE) : std::nullopt;
}

}  // namespace cupool::cuda
