// How a driver hook starts: the real function, or the error of a process without one.
#pragma once

#include "cuda/driver.h"

/// Declares `real`, a reference to the driver's table, or returns CUDA_ERROR_NOT_INITIALIZED from
/// the hook where the process has no driver or the driver no such function. (A program can get here
/// without them only by a weak reference to our export.)
#define CUPOOL_REAL_OR_RETURN(symbol)                                       \
  const cupool::cuda::Driver* const cupool_driver = cupool::cuda::driver(); \
  if (cupool_driver == nullptr || cupool_driver->symbol == nullptr) {       \
    return CUDA_ERROR_NOT_INITIALIZED;                                      \
  }                                                                         \
  const cupool::cuda::Driver& real = *cupool_driver
