// SPDX-License-Identifier: Apache-2.0
// Arrays: opaque on a real device, plain rows of memory here.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace cupool::sim {

struct Context;

struct Array {
  Context* context = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  uintptr_t memory = 0;
  size_t pitch = 0;
  size_t bytes = 0;
};

/// Null when the handle names no living array.
Array* known_array(CUarray handle);

}  // namespace cupool::sim
