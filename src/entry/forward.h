// SPDX-License-Identifier: Apache-2.0
// The begin of a driver hook: the real function, or the error of a process without one.
#pragma once

#include "cuda/driver.h"
#include "util/uncancelled.h"

/// Declares `real`, a reference to the driver's table, and holds back a cancellation of the thread:
/// one inside the driver would unwind cupool's frames, whose unwinder is not the program's. Without
/// a driver, or such a function in it, the hook returns CUDA_ERROR_NOT_INITIALIZED. (Only a weak
/// reference to cupool's export can lead here then.)
#define CUPOOL_REAL_OR_RETURN(symbol)                                       \
  const cupool::cuda::Driver* const cupool_driver = cupool::cuda::driver(); \
  if (cupool_driver == nullptr || cupool_driver->symbol == nullptr) {       \
    return CUDA_ERROR_NOT_INITIALIZED;                                      \
  }                                                                         \
  const cupool::cuda::Driver& real = *cupool_driver;                        \
  const cupool::util::Uncancelled cupool_uncancelled
