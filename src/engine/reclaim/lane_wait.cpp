// SPDX-License-Identifier: Apache-2.0
// The event of a host's wait lives as long as that of the mark, whose context is its own.
#include "engine/reclaim/lane_wait.h"

#include "cuda/capture_state.h"
#include "cuda/scopes.h"
#include "engine/reclaim/lane.h"
#include "engine/reclaim/serving.h"
#include "util/mutation.h"

namespace cupool::engine {

bool LaneWait::is_complete() {
  if (LaneMark::wait(driver_, LaneMark::Wait::not_at_all)) return true;
  if (!recorded_ && !refused_) record();
  if (!recorded_) return false;
  const LaneMark::Use use;
  if (use.event() == nullptr) return true;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  return driver_.cuEventQuery(event_) != CUDA_ERROR_NOT_READY;
}

// Only in the lane: after it the mark stays, and the stream may be the legacy one, where an event
// would hold blocking streams up. No capture of the stream begins within the use.
void LaneWait::record() {
  if (CUPOOL_MUTATED("follows-the-mark")) return;
  const LaneMark::Use use;
  if (!Lane::is_open() || !Serving::open_for_certain() || use.event() == nullptr) return;
  const auto [context, stream] = LaneMark::place();
  const cuda::ContextScope scope(driver_, context);
  if (scope.ok() && driver_.cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS) {
    recorded_ = driver_.cuEventRecord(event_, stream) == CUDA_SUCCESS;
  } else {
    event_ = nullptr;
  }
  refused_ = !recorded_;
}

LaneWait::~LaneWait() {
  if (event_ == nullptr) return;
  const LaneMark::Use use;
  if (use.event() != nullptr) driver_.cuEventDestroy_v2(event_);
}

// In the lane nobody awaits the mark. The word is asked first: who leaves has streams wait before.
// No capture that the stream is not yet part of begins within the use.
void order_event(const cuda::Driver& driver, CUstream stream) {
  if (LaneMark::number() == 0 || (!Lane::is_open() && !LaneMark::is_awaited())) return;
  if (CUPOOL_MUTATED("forgets-the-order-of-an-event")) return;
  const LaneMark::Use use;
  if (Serving::any_capture() && cuda::is_capturing(driver, stream).value_or(true)) return;
  use.put_behind(driver, stream);
}

}  // namespace cupool::engine
