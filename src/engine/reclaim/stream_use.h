// SPDX-License-Identifier: Apache-2.0
// The streams that a hook still uses after the driver's own call. Another thread may destroy a
// stream as soon as it has seen the work's effect, for example in a callback, while the submitting
// thread has not returned. The driver crashes on a destroyed handle (seen with such a program). So
// the destruction waits for the short time that the hook needs.
#pragma once

#include <array>
#include <atomic>

#include "cuda/api.h"

namespace cupool::engine {

/// Marks a stream from before the driver's call until the hook is done with it. Null and the
/// default streams, which are never destroyed, need no mark. Thread-safe; costs two writes.
class StreamUse {
 public:
  explicit StreamUse(CUstream stream);
  ~StreamUse();
  StreamUse(const StreamUse&) = delete;
  StreamUse& operator=(const StreamUse&) = delete;

  /// Returns when no other thread has the stream marked, or after a second: the thread in the
  /// driver's call may be waiting for the thread that destroys the stream.
  static void wait_for_others(CUstream stream);

  /// In a forked child: drops the marks of the parent's other threads.
  static void forget();

 private:
  struct alignas(64) Place {
    std::atomic<CUstream> stream{nullptr};
  };
  /// Added when all places are taken, and never removed: as many as the highest number of
  /// simultaneous uses.
  struct Places {
    std::array<Place, 64> all;
    std::atomic<Places*> more{nullptr};
  };
  static Place* take(Place& place, CUstream stream);
  static Place* take_any(CUstream stream);
  static Places* more_of(Places& places);
  static bool any_other(CUstream stream);

  static Places places_;
  static thread_local Place* last_;       ///< the thread's last one
  static std::atomic<unsigned> unnamed_;  ///< uses without a place, for lack of memory
  Place* place_ = nullptr;
  bool unnamed_use_ = false;
};

}  // namespace cupool::engine
