// SPDX-License-Identifier: Apache-2.0
// cuMemFree of memory that cupool does not serve. The driver's free waits for all work of the
// context, but not if the memory is a pool's, and perhaps not if it is a graph's: that is free at
// once. A program whose own free of something else came before, which would have waited, needs no
// other wait (contract 2).
#pragma once

#include "cuda/driver.h"

namespace cupool::engine {

/// The driver's free of `address`, behind the work before the thread's frees. Result: the driver's.
/// Thread-safe.
CUresult free_unordered(const cuda::Driver& driver, CUdeviceptr address);

}  // namespace cupool::engine
