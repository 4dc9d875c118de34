// SPDX-License-Identifier: Apache-2.0
// Around each driver call that submits work to a stream: what it means to the lane
// (engine/reclaim/lane), and to the order behind the thread's frees (engine/context/thread_order).
#pragma once

#include "engine/context/thread_order.h"
#include "engine/reclaim/calls_under_way.h"
#include "engine/reclaim/lane.h"
#include "engine/reclaim/pending_work.h"
#include "util/mutation.h"

namespace cupool::engine {

/// As Submission, but inline, for launches. Those into default streams are not counted apart: that
/// would cost each launch 15 instructions.
class InlineSubmission {
 public:
  using Into = CallsUnderWay::Into;
  [[gnu::always_inline]] InlineSubmission(const cuda::Driver& driver, CUstream stream,
                                          const char* call, Into into = Into::explicit_stream)
      : driver_(driver), stream_(stream), work_(order(driver, stream, call)), call_(into) {
    // Another thread may learn of the work before the call returns.
    PendingWork::submitted();
    if (work_ != Lane::Work::none) LaneWork::submitted();
  }
  [[gnu::always_inline]] ~InlineSubmission() {
    PendingWork::submitted();
    if (work_ == Lane::Work::inside) {
      LaneWork::submitted();
    } else if (work_ == Lane::Work::outside) {
      Lane::submitted_outside(driver_, stream_);
    }
  }
  InlineSubmission(const InlineSubmission&) = delete;
  InlineSubmission& operator=(const InlineSubmission&) = delete;

 private:
  [[gnu::always_inline]] static Lane::Work order(const cuda::Driver& driver, CUstream stream,
                                                 const char* call) {
    if (Lane::holds(stream)) {
      ThreadOrder::submits_in_lane();
      return Lane::Work::inside;
    }
    const Lane::Work work = Lane::is_over() ? Lane::Work::none : Lane::admit(driver, stream, call);
    ThreadOrder::submits(driver, stream);
    return work;
  }

  const cuda::Driver& driver_;
  const CUstream stream_;
  const Lane::Work work_;
  const CallsUnderWay::Call call_;  ///< last: what has to be waited for before is no call yet
};

/// Around a driver call that submits work to `stream`, an explicit handle.
class Submission {
 public:
  /// `call`: the function, for messages.
  Submission(const cuda::Driver& driver, CUstream stream, const char* call);
  ~Submission();
  Submission(const Submission&) = delete;
  Submission& operator=(const Submission&) = delete;

 private:
  const InlineSubmission submission_;
};

/// After an allocation in the order of `stream`, an explicit handle. Its memory may be that of work
/// of another thread in that stream, which the calling thread's next free waits for without cupool.
[[gnu::always_inline]] inline void allocated_in(const cuda::Driver& driver, CUstream stream) {
  if (CUPOOL_MUTATED("forgets-the-order-of-allocations")) return;
  Lane::holds(stream) ? ThreadOrder::submits_in_lane()
                      : ThreadOrder::submits(driver, stream, ThreadOrder::What::others_work);
}

/// After a wait of `stream`, an explicit handle, for an event: of another thread or context,
/// perhaps, whose work the next free waits for without cupool. In one lane there is no such work.
void waited_in(const cuda::Driver& driver, CUstream stream);

/// Before a driver call whose work goes to streams that are not known.
inline void submits_unknown(const cuda::Driver& driver, const char* call) {
  PendingWork::distrust();
  Lane::leave_unknown(driver, call);
  ThreadOrder::submits_unknown(driver);
}

}  // namespace cupool::engine
