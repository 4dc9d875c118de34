// SPDX-License-Identifier: Apache-2.0
// The result of a wait for the GPU. A CUresult is the driver's answer only: whether a wait was
// possible, and whether it reached its limit, is not for the driver to say.
#pragma once

#include <cstdint>

#include "cuda/errors.h"

namespace cupool::engine {

struct WaitResult {
  enum class Outcome : std::uint8_t {
    complete,       ///< the GPU has completed the work
    still_pending,  ///< the time limit was reached first
    not_possible,   ///< no wait is possible now, which is no error; a later call may succeed
    failed,         ///< the driver failed with `error`
  };

  Outcome outcome = Outcome::complete;
  bool waited = false;            ///< the work was not seen complete at once
  CUresult error = CUDA_SUCCESS;  ///< the driver's, of Outcome::failed

  bool complete() const { return outcome == Outcome::complete; }
  /// Whether the work is pending, and another wait may see it complete.
  bool worth_repeating() const { return waited && !complete() && error == CUDA_SUCCESS; }

  /// The driver's answer to a wait or to a query.
  static WaitResult answered(CUresult answer) {
    if (answer == CUDA_SUCCESS) return {};
    if (answer == CUDA_ERROR_NOT_READY) return {Outcome::still_pending};
    return {Outcome::failed, false, answer};
  }
  /// The driver's answer to a wait for the whole context. It does not tell whether the GPU was
  /// busy.
  static WaitResult answered_for_context(CUresult answer) {
    WaitResult result = cuda::is_capture_refusal(answer) ? not_possible() : answered(answer);
    result.waited = true;
    return result;
  }
  static WaitResult not_possible() { return {Outcome::not_possible}; }
};

}  // namespace cupool::engine
