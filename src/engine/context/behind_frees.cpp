// SPDX-License-Identifier: Apache-2.0
// The wait before what kernels may use is taken away.
#include "engine/context/behind_frees.h"

namespace cupool::engine {

// One for all calls that need it.
void wait_for_frees(const cuda::Driver& real) {
  wait_for_frees(real, [] { return false; });
}

}  // namespace cupool::engine
