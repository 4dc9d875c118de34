// Which streams a hook still touches after the driver's own call. Another thread may destroy a
// stream as soon as it has seen the work's effect, in a callback say, while the submitting thread
// has not returned; and the driver does not bear a handle that is gone (a crash, seen with a
// program that does so). So its destruction waits for the moment that the hook takes.
#pragma once

#include <array>
#include <atomic>

#include "cuda/api.h"

namespace cupool::core {

/// Marks a stream from before the driver's call until the hook is done with it. The default
/// streams, which are never destroyed, and null need none. Thread-safe; costs two writes.
class StreamUse {
 public:
  explicit StreamUse(CUstream stream);
  ~StreamUse();
  StreamUse(const StreamUse&) = delete;
  StreamUse& operator=(const StreamUse&) = delete;

  /// Returns when no other thread has the stream marked; but after a second at the latest: what
  /// keeps a thread in the driver's call may be the one that destroys the stream.
  static void wait_for_others(CUstream stream);

  /// In a forked child: the threads that had marked streams are not there.
  static void forget();

 private:
  struct alignas(64) Place {
    std::atomic<CUstream> stream{nullptr};
  };
  static bool any_other(CUstream stream);

  static std::array<Place, 64> places_;
  static std::atomic<unsigned> unnamed_;  ///< uses for which there was no place
  Place* place_ = nullptr;
  bool unnamed_use_ = false;
};

}  // namespace cupool::core
