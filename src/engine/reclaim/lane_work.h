// SPDX-License-Identifier: Apache-2.0
// Whether the lane's stream (engine/reclaim/lane.h) has work since its last mark, so that the next
// free has to mark it again. A wait of the program for the stream makes a mark unnecessary.
#pragma once

#include "engine/reclaim/claimed_work.h"

namespace cupool::engine {

/// One state for the process. Thread-safe.
class LaneWork {
 public:
  /// Work is about to be submitted, or was: called before and after the driver's call.
  [[gnu::always_inline]] static void submitted() { of_process_.submitted(); }
  /// Whether a free needs a mark. One load.
  [[gnu::always_inline]] static bool any() { return of_process_.any(); }
  /// For tests: as at the start of the process.
  static void reset() { of_process_.reset(); }

  /// From before a mark is recorded, or the program waits, to after it.
  class Claim : public ClaimedWork<false>::Claim {
   public:
    /// `covers`: the wait is one for the lane's stream.
    explicit Claim(bool covers) : ClaimedWork<false>::Claim(of_process_, covers) {}
  };

 private:
  // Written by submissions, marks and waits.
  static inline ClaimedWork<false> of_process_;
};

}  // namespace cupool::engine
