// SPDX-License-Identifier: Apache-2.0
// One event for each stream, recorded again behind each call. An entry without work is taken for
// another stream when there is no unused one.
#include "engine/reclaim/other_streams.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "cuda/capture_state.h"
#include "cuda/scopes.h"
#include "engine/reclaim/serving.h"
#include "engine/reclaim/stream_use.h"
#include "util/clock.h"
#include "util/mutation.h"

namespace cupool::engine {

namespace {

// A call costs some 0.5 us more while it is counted: 0.05 % of a program's time at most, and 0.5 ms
// at its start.
constexpr std::uint64_t kFirstCalls = 1000;
constexpr std::uint64_t kCallsPerSecond = 1000;

// A program that uploads its data by synchronous copies, or opens cuDNN, and then works in one
// stream of its own has that one as its main stream.
constexpr unsigned kMainLaunches = 8;
constexpr unsigned kMainCalls = 64;

bool is_launch(const char* call) {
  return (std::strncmp(call, "cuLaunch", 8) == 0 && std::strcmp(call, "cuLaunchHostFunc") != 0) ||
         std::strncmp(call, "cuGraphLaunch", 13) == 0;
}

}  // namespace

bool OtherStreams::is_too_often() {
  const std::uint64_t now = util::now_ns();
  if (calls_++ == 0) first_ns_ = now;
  return calls_ > kFirstCalls + (now - first_ns_) / (1'000'000'000 / kCallsPerSecond);
}

OtherStreams::Stream* OtherStreams::find(CUstream stream) {
  for (Stream& entry : streams_) {
    if (entry.handle == stream) return &entry;
  }
  return nullptr;
}

// The entry of the stream, or one that has nothing to tell any more.
OtherStreams::Stream* OtherStreams::find_or_take(const cuda::Driver& driver, CUstream stream) {
  if (Stream* const entry = find(stream)) return entry;
  Stream* quiet = nullptr;
  for (const bool looked : {false, true}) {
    if (looked) look(driver);
    for (Stream& entry : streams_) {
      if (entry.is_quiet() && (quiet == nullptr || entry.calls < quiet->calls)) quiet = &entry;
    }
    if (quiet != nullptr) break;
  }
  if (quiet != nullptr) {
    const CUevent event = quiet->event;
    *quiet = Stream{};
    quiet->handle = stream;
    quiet->event = event;
  }
  return quiet;
}

bool OtherStreams::begin(const cuda::Driver& driver, CUstream stream, const char* call) {
  if (over_.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(mutex_);
  if (failed_ || is_too_often()) return false;
  Stream* const entry = find_or_take(driver, stream);
  if (entry == nullptr) return false;
  ++entry->in_flight;
  ++entry->calls;
  if (is_launch(call)) ++entry->launches;
  return true;
}

// The record may wait for room in the stream's queue, so it is made without the lock. Of several
// threads that record the same event, the last one comes behind the work of all. Who destroys the
// stream takes the entry away first, and then waits for those who have found it. Who begins a
// capture waits for those who have not found that.
void OtherStreams::end(const cuda::Driver& driver, CUcontext context, CUstream stream) {
  const StreamUse in_use(stream);
  if (over_.load(std::memory_order_relaxed)) return;
  CUevent event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    Stream* const entry = find(stream);
    if (entry == nullptr) return;  // destroyed by the program during its call
    if (entry->event == nullptr) {
      const cuda::ContextScope scope(driver, context);
      if (scope.ok()) driver.cuEventCreate(&entry->event, CU_EVENT_DISABLE_TIMING);
    }
    event = entry->event;
    entry->pending = event != nullptr;
  }
  const cuda::RelaxedCaptureScope relaxed(driver);
  bool recorded = false;
  {
    const UseCount::Use use(users_);
    const bool captures =
        Serving::any_capture() && cuda::is_capturing(driver, stream).value_or(true);
    recorded = event != nullptr && !captures && driver.cuEventRecord(event, stream) == CUDA_SUCCESS;
  }
  const std::lock_guard lock(mutex_);
  failed_ |= !recorded;
  if (Stream* const entry = find(stream)) --entry->in_flight;
}

// Asks for the events that are not seen complete.
void OtherStreams::look(const cuda::Driver& driver) {
  const cuda::RelaxedCaptureScope relaxed(driver);
  for (Stream& entry : streams_) {
    if (entry.pending && entry.in_flight == 0) {
      entry.pending = driver.cuEventQuery(entry.event) != CUDA_SUCCESS;
    }
  }
}

bool OtherStreams::are_complete_but(const cuda::Driver& driver, CUstream stream) {
  const std::lock_guard lock(mutex_);
  if (failed_) return false;
  if (CUPOOL_MUTATED("returns-with-work-pending")) return true;
  look(driver);
  return std::all_of(streams_.begin(), streams_.end(), [stream](const Stream& entry) {
    return entry.is_quiet() || entry.handle == stream;
  });
}

bool OtherStreams::is_main(CUstream stream) {
  const std::lock_guard lock(mutex_);
  const Stream* const entry = find(stream);
  return entry != nullptr && (entry->launches >= kMainLaunches || entry->calls >= kMainCalls);
}

void OtherStreams::destroys(CUstream stream) {
  if (over_.load(std::memory_order_relaxed) || CUPOOL_MUTATED("keeps-a-destroyed-stream")) return;
  const std::lock_guard lock(mutex_);
  Stream* const entry = find(stream);
  if (entry == nullptr) return;
  entry->handle = nullptr;
  entry->calls = 0;
}

void OtherStreams::reset() {
  streams_ = {};
  calls_ = 0;
  failed_ = false;
  over_ = false;
}

}  // namespace cupool::engine
