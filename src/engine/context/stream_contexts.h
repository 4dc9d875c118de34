// SPDX-License-Identifier: Apache-2.0
// The contexts of the program's streams, and captures on these streams.
#pragma once

#include <array>

#include "cuda/capture_state.h"
#include "cuda/driver.h"
#include "engine/context/context_registry.h"
#include "engine/context/thread_order.h"
#include "engine/reclaim/call_lines.h"
#include "engine/reclaim/lane_mark.h"
#include "engine/reclaim/other_streams.h"
#include "engine/reclaim/serving.h"
#include "engine/reclaim/stream_use.h"
#include "engine/reclaim/use_count.h"

namespace cupool::engine {

/// Thread-safe.
class StreamContexts {
 public:
  StreamContexts(const cuda::Driver& driver, ContextRegistry& registry)
      : driver_(driver), registry_(registry) {}

  /// The context of a stream. The current one for the default streams, or if the driver does not
  /// say. Null: see ContextRegistry::current().
  Context* context_of(CUstream stream);

  /// The context in which this stream captures, or null.
  Context* capturing_context(CUstream stream);

  /// Runs `begin`, the driver's begin of a capture on `stream` of `context`. A stream of any other
  /// context may join the capture at once. So the capture is counted first, and then no fence is
  /// being recorded in any context, nor a mark of the lane (I3).
  template <typename Call>
  CUresult begin_capture(Context& context, CUstream stream, const Call& begin) {
    Serving::capture_begins();
    LaneMark::let_users_out();  // a mark may be under way although the lane is over
    ThreadOrder::let_users_out();
    OtherStreams::let_users_out();
    for (const Notes& part : notes_) part.count.wait_until_none();
    StreamUse::wait_for_others(stream);  // work from before is noted before the capture
    let_fences_in_but(context);
    const CUresult result = context.ordering().captures().begin(stream, begin);
    Serving::captures_end(1);  // the ordering counts its own
    return result;
  }

  /// The same for a stream whose context has to be found. One that is not served is left alone.
  template <typename Call>
  CUresult begin_capture(CUstream stream, const Call& begin) {
    Context* const context = context_of(stream);
    return context == nullptr ? begin() : begin_capture(*context, stream, begin);
  }

  /// Runs `end`, the driver's end of a capture on `stream`.
  template <typename Call>
  CUresult end_capture(CUstream stream, const Call& end) {
    return end_capture(stream, end,
                       [&] { return cuda::is_capturing(driver_, stream).value_or(false); });
  }

  /// Runs `destroy`, the driver's destruction of `stream`, which ends its capture. Its handle names
  /// no known work any more before: another thread may get it at once.
  template <typename Call>
  CUresult destroy(CUstream stream, const Call& destroy) {
    Context* const owner = context_of(stream);
    if (owner != nullptr) owner->host_work().destroys(stream);
    CUresult result = CUDA_ERROR_UNKNOWN;
    end_capture(
        stream, [&] { return result = destroy(); }, [&] { return result != CUDA_SUCCESS; });
    return result;
  }

  /// Notes work on `stream`, an explicit handle, that touches host memory: frees in its context
  /// wait for it (contract 2). In a capture nothing is submitted to the GPU, and nothing is noted.
  void host_work_submitted(CUstream stream);

 private:
  /// Runs `end`. `still_capturing` tells whether the stream captures after it.
  template <typename Call, typename Query>
  CUresult end_capture(CUstream stream, const Call& end, const Query& still_capturing) {
    Context* const context = capturing_context(stream);
    return context == nullptr ? end()
                              : context->ordering().captures().end(stream, end, still_capturing);
  }

  void let_fences_in_but(const Context& context);

  const cuda::Driver& driver_;
  ContextRegistry& registry_;
  // Notes of host work from the look for captures to the event, by threads.
  struct alignas(128) Notes {
    UseCount count;
  };
  std::array<Notes, kCallLines> notes_;
};

}  // namespace cupool::engine
