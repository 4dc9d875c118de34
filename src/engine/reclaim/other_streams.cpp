// SPDX-License-Identifier: Apache-2.0
// One event for each stream, recorded again behind each call.
#include "engine/reclaim/other_streams.h"

#include <algorithm>
#include <mutex>

#include "cuda/scopes.h"
#include "util/clock.h"
#include "util/mutation.h"

namespace cupool::engine {

namespace {

// A call costs some 0.5 us more while it is counted: 0.05 % of a program's time at most, and 0.5 ms
// at its start.
constexpr std::uint64_t kFirstCalls = 1000;
constexpr std::uint64_t kCallsPerSecond = 1000;

}  // namespace

bool OtherStreams::is_too_often() {
  const std::uint64_t now = util::now_ns();
  if (calls_++ == 0) first_ns_ = now;
  return calls_ > kFirstCalls + (now - first_ns_) / (1'000'000'000 / kCallsPerSecond);
}

// The entry of the stream; if it has none, one that may be taken for it.
OtherStreams::Stream* OtherStreams::find(CUstream stream) {
  Stream* unused = nullptr;
  for (Stream& entry : streams_) {
    if (entry.handle == stream) return &entry;
    if (entry.handle == nullptr && !entry.pending) unused = &entry;
  }
  return unused;
}

bool OtherStreams::begin(CUstream stream) {
  const std::lock_guard lock(mutex_);
  if (failed_ || is_too_often()) return false;
  Stream* const entry = find(stream);
  if (entry == nullptr) return false;
  entry->handle = stream;
  ++in_flight_;
  return true;
}

// The record may wait for room in the stream's queue, so it is made without the lock. Of several
// threads that record the same event, the last one comes behind the work of all.
void OtherStreams::end(const cuda::Driver& driver, CUcontext context, CUstream stream) {
  CUevent event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    Stream* const entry = find(stream);
    if (entry != nullptr && entry->handle == stream) {
      if (entry->event == nullptr) {
        const cuda::ContextScope scope(driver, context);
        if (scope.ok()) driver.cuEventCreate(&entry->event, CU_EVENT_DISABLE_TIMING);
      }
      event = entry->event;
      entry->pending = event != nullptr;
    }
  }
  const cuda::RelaxedCaptureScope relaxed(driver);
  const bool recorded = event != nullptr && driver.cuEventRecord(event, stream) == CUDA_SUCCESS;
  const std::lock_guard lock(mutex_);
  failed_ |= !recorded;
  --in_flight_;
}

bool OtherStreams::are_complete(const cuda::Driver& driver) {
  const std::lock_guard lock(mutex_);
  if (failed_ || in_flight_ != 0) return false;
  if (CUPOOL_MUTATED("returns-with-work-pending")) return true;
  const cuda::RelaxedCaptureScope relaxed(driver);
  for (Stream& entry : streams_) {
    if (entry.pending && driver.cuEventQuery(entry.event) != CUDA_SUCCESS) return false;
    entry.pending = false;
    entry.handle = nullptr;
  }
  return true;
}

void OtherStreams::destroys(CUstream stream) {
  if (CUPOOL_MUTATED("keeps-a-destroyed-stream")) return;
  const std::lock_guard lock(mutex_);
  for (Stream& entry : streams_) {
    if (entry.handle == stream) entry.handle = nullptr;
  }
}

void OtherStreams::reset() {
  streams_ = {};
  in_flight_ = 0;
  calls_ = 0;
  failed_ = false;
}

}  // namespace cupool::engine
