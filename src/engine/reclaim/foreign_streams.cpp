// SPDX-License-Identifier: Apache-2.0
// Orders a context behind a stream of another context: an event is recorded on that stream and
// waited for here. In a stream of its own an event and a wait for it stand for the driver's free,
// which is an operation there: blocking streams and the legacy stream wait for one another's. Alone
// neither is one in a blocking stream (measured). Source: CUDA Driver API, cuStreamWaitEvent (the
// event may be of another context or device); docs/measurements.
#include "engine/reclaim/foreign_streams.h"

#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "cuda/stream_kind.h"
#include "engine/reclaim/legacy_stream.h"
#include "util/mutation.h"

namespace cupool::engine {

bool ForeignStreams::order_behind(CUstream stream) {
  if (CUPOOL_MUTATED("foreign-stream-ignored")) return true;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  CUcontext other = nullptr;
  const bool known = context_of(stream, &other);
  if (known && other == nullptr) return true;
  const bool is_own = known && other == context_;
  if (known && (is_own ? stand_for_free(stream) : queue_wait(stream, other))) return true;
  if (known && !is_alone(stream)) wait_for_legacy(other);
  const CUresult waited = cuda::insist([&] { return driver_.cuStreamSynchronize(stream); });
  return waited == CUDA_SUCCESS || is_own;  // the fences cover it
}

// The free would have been an operation behind its work.
void ForeignStreams::wait_for_legacy(CUcontext context) const {
  const cuda::ContextScope scope(driver_, context);
  if (scope.ok()) cuda::insist([&] { return driver_.cuStreamSynchronize(CU_STREAM_LEGACY); });
}

bool ForeignStreams::is_alone(CUstream stream) const {
  return (stream != nullptr && cuda::is_non_blocking(driver_, stream) == true) ||
         CUPOOL_MUTATED("forgets-that-a-free-is-an-operation");
}

bool ForeignStreams::stand_for_free(CUstream stream) const {
  if (is_alone(stream)) return true;
  const CUevent event = record(stream, context_);
  if (event == nullptr) return false;
  const bool stands = wait_in_own(stream, event, context_);
  driver_.cuEventDestroy_v2(event);
  return stands;
}

// The event was recorded there.
bool ForeignStreams::wait_in_own(CUstream stream, CUevent event, CUcontext context) const {
  const cuda::ContextScope scope(driver_, context);
  return scope.ok() && driver_.cuStreamWaitEvent(stream, event, 0) == CUDA_SUCCESS;
}

// A stream without a context (a default stream while no context is current) has no pending work.
// False: the driver does not say.
bool ForeignStreams::context_of(CUstream stream, CUcontext* other) const {
  const bool named = stream != nullptr && !cuda::is_default(stream);
  const auto ask = [&] {
    return named ? driver_.cuStreamGetCtx(stream, other) : driver_.cuCtxGetCurrent(other);
  };
  return ask() == CUDA_SUCCESS || ask() == CUDA_SUCCESS;
}

// Null: refused.
CUevent ForeignStreams::record(CUstream stream, CUcontext context) const {
  CUevent event = nullptr;
  const cuda::ContextScope scope(driver_, context);
  if (!scope.ok() || driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
    return nullptr;
  }
  if (driver_.cuEventRecord(event, stream) == CUDA_SUCCESS) return event;
  driver_.cuEventDestroy_v2(event);
  return nullptr;
}

bool ForeignStreams::queue_wait(CUstream stream, CUcontext other) {
  const CUevent event = record(stream, other);
  if (event == nullptr) return false;
  const bool queued = wait_for(event) && (is_alone(stream) || wait_in_own(stream, event, other));
  driver_.cuEventDestroy_v2(event);  // the driver keeps an event that is waited for
  return queued;
}

bool ForeignStreams::wait_for(CUevent event) {
  const cuda::ContextScope scope(driver_, context_);
  if (!scope.ok()) return false;
  const std::lock_guard lock(mutex_);
  if (waiting_ == nullptr) {
    // From now on a wait for the legacy stream does not cover this stream.
    LegacyStream::creates(CU_STREAM_NON_BLOCKING);
    if (driver_.cuStreamCreate(&waiting_, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
      waiting_ = nullptr;
      return false;
    }
  }
  return driver_.cuStreamWaitEvent(waiting_, event, 0) == CUDA_SUCCESS;
}

void ForeignStreams::clear() {
  const std::lock_guard lock(mutex_);
  waiting_ = nullptr;
}

}  // namespace cupool::engine
