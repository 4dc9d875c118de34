// SPDX-License-Identifier: Apache-2.0
// Kinds of driver errors: sticky, refused because of a capture, or ordinary.
#pragma once

#include "cuda/api.h"

namespace cupool::cuda {

/// True for errors that every later call in the context repeats (CUDA Driver API, CUresult: "leaves
/// the process in an inconsistent state and any further CUDA work will return the same error").
inline bool is_sticky(CUresult result) {
  switch (static_cast<int>(result)) {
    case 214:  // uncorrectable ECC error
    case 220:  // uncorrectable NVLink error
    case 226:  // contained error
    case 700:  // illegal address
    case 702:  // launch timeout
    case 709:  // context is destroyed
    case 710:  // device assert
    case 714:  // hardware stack error
    case 715:  // illegal instruction
    case 716:  // misaligned address
    case 717:  // invalid address space
    case 718:  // invalid program counter
    case 719:  // launch failed
    case 721:  // tensor memory leak
      return true;
    default:
      return false;
  }
}

/// True for errors that end the use of a context, or of the driver, for good.
inline bool is_final(CUresult result) {
  return result == CUDA_ERROR_DEINITIALIZED || is_sticky(result);
}

/// True for the codes of calls refused because of a stream capture (900-908).
inline bool is_capture_refusal(CUresult result) {
  const int code = static_cast<int>(result);
  return code >= 900 && code <= 908;
}

/// True for an answer that says nothing about the GPU's work: the call was refused, and another one
/// has to be made.
inline bool is_refusal(CUresult result) {
  return result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY && !is_final(result);
}

/// True for trouble of the call itself, which a second one may not have.
inline bool is_passing_refusal(CUresult result) {
  return is_refusal(result) && !is_capture_refusal(result);
}

/// The answer of a call on which the order of memory or a capture depends: it is made three times
/// at most, since a refusal may pass.
template <typename Call>
CUresult insist(const Call& call) {
  CUresult answer = call();
  for (int more = 2; more != 0 && is_passing_refusal(answer); --more) answer = call();
  return answer;
}

}  // namespace cupool::cuda
