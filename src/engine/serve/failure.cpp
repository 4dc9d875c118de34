// SPDX-License-Identifier: Apache-2.0
// Sticky errors and the driver's shutdown.
#include "engine/serve/failure.h"

#include "cuda/errors.h"
#include "util/log.h"
#include "util/mutation.h"

namespace cupool::engine {

void note_failure(Context& context, CUresult result) {
  if (cuda::is_sticky(result)) {
    if (CUPOOL_MUTATED("sticky-serves-on")) return;
    context.set_poisoned();
    CUPOOL_LOG(info, "error %d is sticky: from now on the driver serves this context",
               static_cast<int>(result));
  } else if (result == CUDA_ERROR_DEINITIALIZED) {
    cuda::note_shut_down();
  }
}

void note_failure(Context& context, std::uint64_t life, CUresult result) {
  if (!cuda::is_sticky(result) || context.incarnation() == life) note_failure(context, result);
}

}  // namespace cupool::engine
