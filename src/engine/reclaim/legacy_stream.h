// SPDX-License-Identifier: Apache-2.0
// The coverage of a wait for the legacy stream.
//
// The legacy stream waits for all blocking streams and for every thread's per-thread default
// stream, including the work of ended threads and destroyed streams. Only non-blocking streams are
// not covered. Source: CUDA Programming Guide, implicit synchronisation; docs/measurements.
#pragma once

#include <atomic>

#include "cuda/api.h"

namespace cupool::engine {

/// One state for the process. Thread-safe.
class LegacyStream {
 public:
  /// Called before the program creates a stream with these flags. cupool's own streams carry no
  /// work that touches memory and are not counted, except those that wait for other contexts
  /// (ForeignStreams).
  static void creates(unsigned flags) {
    if ((flags & CU_STREAM_NON_BLOCKING) != 0) alone_.store(false, std::memory_order_release);
  }

  /// Whether such a wait covers all work of the context. Called after the caller has determined the
  /// epochs that the wait is to complete: a non-blocking stream is announced here before any work
  /// runs on it. One load.
  static bool covers_context();

 private:
  static std::atomic<bool> alone_;  ///< no non-blocking stream was ever created
};

}  // namespace cupool::engine
