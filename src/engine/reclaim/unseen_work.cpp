// SPDX-License-Identifier: Apache-2.0
// The steps of a look: one call to record the events, one that finds the stream's complete, and
// some, after pauses, for the context's.
#include "engine/reclaim/unseen_work.h"

#include <initializer_list>

#include "cuda/scopes.h"

namespace cupool::engine {

namespace {

// Two records and two queries, some 1 us, ten times a second.
constexpr std::uint64_t kPauseNs = 100'000'000;
// What cupool and the driver do in the context besides is complete after so many looks, which are
// some milliseconds apart.
constexpr unsigned kLooks = 5;
constexpr std::uint64_t kBetweenLooksNs = 2'000'000;

}  // namespace

void UnseenWork::next(Step step, std::uint64_t at_ns) {
  step_ = step;
  next_ns_.store(at_ns, std::memory_order_relaxed);
}

bool UnseenWork::record(const cuda::Driver& driver, CUcontext context, CUstream stream) {
  const cuda::ContextScope scope(driver, context);
  if (!scope.ok()) return false;
  for (CUevent* event : {&of_context_, &of_stream_}) {
    if (*event == nullptr && driver.cuEventCreate(event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
      return false;
    }
  }
  return driver.cuCtxRecordEvent(context, of_context_) == CUDA_SUCCESS &&
         driver.cuEventRecord(of_stream_, stream) == CUDA_SUCCESS;
}

bool UnseenWork::look(const cuda::Driver& driver, CUcontext context, CUstream stream,
                      std::uint64_t now_ns) {
  if (now_ns < next_ns_.load(std::memory_order_relaxed) || driver.cuCtxRecordEvent == nullptr) {
    return false;
  }
  if (busy_.exchange(true, std::memory_order_acquire)) return false;
  bool found = false;
  switch (step_) {
    case Step::record:
      looks_ = 0;
      if (record(driver, context, stream)) {
        next(Step::stream, now_ns);
      } else {
        next(Step::record, now_ns + kPauseNs);
      }
      break;
    case Step::stream:
      if (driver.cuEventQuery(of_stream_) == CUDA_SUCCESS)
        next(Step::context, now_ns + kBetweenLooksNs);
      break;
    case Step::context:
      if (driver.cuEventQuery(of_context_) != CUDA_ERROR_NOT_READY) {
        next(Step::record, now_ns + kPauseNs);
      } else if (++looks_ < kLooks) {
        next(Step::context, now_ns + kBetweenLooksNs);
      } else {
        found = true;
      }
      break;
  }
  busy_.store(false, std::memory_order_release);
  return found;
}

void UnseenWork::reset() {
  step_ = Step::record;
  next_ns_ = 0;
  of_context_ = of_stream_ = nullptr;
  busy_ = false;
}

}  // namespace cupool::engine
