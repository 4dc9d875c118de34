// What the end of a wait for the legacy stream says of the whole context.
//
// The legacy stream waits for all blocking streams and every thread's per-thread default stream,
// ended threads' and destroyed streams' work included; non-blocking streams alone stand apart.
// Source: CUDA Programming Guide, implicit synchronisation, and docs/measurements.
#pragma once

#include <atomic>

#include "cuda/api.h"

namespace cupool::core {

/// Of the whole process. Thread-safe.
class LegacyStream {
 public:
  /// To be called before the program creates a stream with these flags. Our own streams carry no
  /// work that touches memory, and count for nothing.
  static void creates(unsigned flags) {
    if ((flags & CU_STREAM_NON_BLOCKING) != 0) alone_.store(false, std::memory_order_release);
  }

  /// Whether such a wait is one for all work of the context. Asked after what the wait is to cover
  /// has been settled: who has a non-blocking stream has told so before anything ran there. One
  /// load.
  static bool covers_context();

 private:
  static std::atomic<bool> alone_;  ///< no non-blocking stream was ever created
};

}  // namespace cupool::core
