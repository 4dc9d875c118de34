// SPDX-License-Identifier: Apache-2.0
// Out of line for the many calls that are rarer than launches: each would carry all of it.
#include "engine/context/submission.h"

#include "cuda/stream_kind.h"

namespace cupool::engine {

Submission::Submission(const cuda::Driver& driver, CUstream stream, const char* call)
    : submission_(driver, stream, call,
                  cuda::is_default(stream) ? CallsUnderWay::Into::default_stream
                                           : CallsUnderWay::Into::explicit_stream) {}

Submission::~Submission() = default;

void waited_in(const cuda::Driver& driver, CUstream stream) {
  if (Lane::holds(stream) || CUPOOL_MUTATED("forgets-the-order-of-waits")) return;
  ThreadOrder::submits(driver, stream, ThreadOrder::What::others_work);
}

}  // namespace cupool::engine
