// SPDX-License-Identifier: Apache-2.0
// The capturing streams, and the order of captures and cupool's synchronisations.
#include "engine/reclaim/captures.h"

#include <algorithm>
#include <chrono>
#include <new>

#include "util/log.h"
#include "util/mutation.h"
#include "util/uncancelled.h"

namespace cupool::engine {

bool Captures::has(CUstream stream) const {
  const OrderingGuard lock(mutex_);
  return std::find(streams_.begin(), streams_.end(), key_of(stream)) != streams_.end();
}

Captures::StreamKey Captures::key_of(CUstream stream) {
  thread_local const char this_thread = 0;
  return {stream, stream == CU_STREAM_PER_THREAD ? &this_thread : nullptr};
}

// Asked before the capture begins. Without host memory its end will not be seen: it counts until
// the context ends, since a needless wait is better than a fence in a capture (I3).
bool Captures::has_place() {
  try {
    if (streams_.size() == streams_.capacity()) streams_.reserve(2 * streams_.size());
    return true;
  } catch (const std::bad_alloc&) {
    CUPOOL_WARN_ONCE(
        "no host memory to note a capture: until its context ends, cupool serves nothing that lies "
        "idle there; give the process more memory, or capture fewer streams at once");
    return false;
  }
}

void Captures::let_fences_in() {
  OrderingLock lock(mutex_);
  let_synchronisations_in(lock);
}

// The driver refuses a synchronisation of the context during a capture, and invalidates the
// capture. A thread that saw no capture may not have called the driver yet, so a beginning capture
// waits for it. The wait is limited, because the GPU may be waiting for the thread that begins the
// capture.
void Captures::let_synchronisations_in(OrderingLock& lock) {
  constexpr auto kLongestWayIn = std::chrono::milliseconds(100);
  if (synchronising_ == 0 || CUPOOL_MUTATED("synchronises-into-capture")) return;
  const util::Uncancelled throughout;
  ++beginning_;
  synchronised_.wait_for(lock, kLongestWayIn, [this] { return synchronising_ == 0; });
  --beginning_;
}

void Captures::synchronisation_ends() {
  if (--synchronising_ == 0) synchronised_.notify_all();
}

void Captures::forget_stream(CUstream stream) {
  const auto found = std::find(streams_.begin(), streams_.end(), key_of(stream));
  if (found == streams_.end()) return;
  streams_.erase(found);
  Serving::captures_end(1);
}

void Captures::forget() {
  const OrderingLock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) abandon();
}

void Captures::abandon() {
  Serving::captures_end(streams_.size() + unlisted_);
  streams_.clear();
  unlisted_ = 0;
}

}  // namespace cupool::engine
