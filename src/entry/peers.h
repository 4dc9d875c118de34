// SPDX-License-Identifier: Apache-2.0
// Copies between contexts. One between two of them is work of both.
#pragma once

#include "cuda/api.h"

namespace cupool::entry {

inline bool are_apart(CUcontext from, CUcontext to) {
  return from != to;
}

/// A copy without parameters is refused by the driver. Where host memory takes part, its context
/// has no meaning.
inline bool are_apart(const CUDA_MEMCPY3D_PEER* copy) {
  return copy != nullptr && copy->srcMemoryType != CU_MEMORYTYPE_HOST &&
         copy->dstMemoryType != CU_MEMORYTYPE_HOST && are_apart(copy->srcContext, copy->dstContext);
}

}  // namespace cupool::entry
