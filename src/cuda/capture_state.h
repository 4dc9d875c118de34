// SPDX-License-Identifier: Apache-2.0
// Whether a stream captures, as the driver says.
#pragma once

#include <optional>

#include "cuda/driver.h"
#include "cuda/errors.h"

namespace cupool::cuda {

/// Whether `stream` captures, even if its capture is invalid. Empty: the driver refuses to say, as
/// often as insist() asks. False with a driver that has no captures. Thread-safe.
[[gnu::noinline]] inline std::optional<bool> is_capturing(const Driver& driver, CUstream stream) {
  if (driver.cuStreamIsCapturing == nullptr) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  // A wrong guess would end the program's capture.
  if (insist([&] { return driver.cuStreamIsCapturing(stream, &status); }) != CUDA_SUCCESS)
    return {};
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace cupool::cuda
