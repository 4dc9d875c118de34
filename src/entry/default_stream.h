// SPDX-License-Identifier: Apache-2.0
// The meaning of stream handle 0, which depends on the variant of a function that it is passed to.
#pragma once

#include "cuda/api.h"

namespace cupool::entry {

/// The explicit handle of a stream passed to a function without suffix.
inline CUstream legacy(CUstream stream) {
  return stream == nullptr ? CU_STREAM_LEGACY : stream;
}

/// The explicit handle of a stream passed to a function that ends in _ptsz.
inline CUstream per_thread(CUstream stream) {
  return stream == nullptr ? CU_STREAM_PER_THREAD : stream;
}

}  // namespace cupool::entry
