// SPDX-License-Identifier: Apache-2.0
// Whether the GPU has nothing left to do for this process: all work so far was covered by a fence
// or a wait that is complete, and none was submitted since. Page-locked memory that is freed then
// needs no fence of its own (engine/serve/host_memory).
#pragma once

#include <atomic>

#include "engine/reclaim/claimed_work.h"
#include "util/mutation.h"

namespace cupool::engine {

/// One state for the process. Thread-safe; may be called before the rest of cupool has
/// started. Known only as long as every submission is seen, and in a process with one context.
class PendingWork {
 public:
  /// Work is about to be submitted, or was: called before and after the driver's call.
  [[gnu::always_inline]] static void submitted() { of_process_.submitted(); }
  /// Whether nothing is pending. One load; false where that is not known.
  [[gnu::always_inline]] static bool none() {
    return !of_process_.any() || CUPOOL_MUTATED("nothing-is-pending");
  }

  /// Whether no work was reported since the last claim, which may not be settled yet. For one who
  /// has waited: how long the driver's own wait will take, not whether memory is in use.
  static bool none_since_claim() { return !of_process_.any_unclaimed(); }

  /// Work may reach the GPU unseen: nothing is known any more, for good.
  static void distrust() {
    trusted_.store(false, std::memory_order_seq_cst);
    of_process_.take_away();
  }
  static bool is_trusted() { return trusted_.load(std::memory_order_seq_cst); }

  /// From before a fence is recorded, or the context is waited for, to after its completion was
  /// seen. Work that is submitted meanwhile makes it void.
  class Claim : public ClaimedWork<true>::Claim {
   public:
    /// `covers`: the wait covers all work of the process.
    explicit Claim(bool covers = true) : ClaimedWork<true>::Claim(of_process_, covers) {
      // Asked behind the claim: who distrusts later takes it away.
      if (!is_trusted()) give_up();
    }
  };

  /// For tests: as at the start of the process.
  static void reset() {
    of_process_.reset();
    trusted_ = true;
  }

 private:
  // Read by every submission, written by the first one after a wait.
  static inline ClaimedWork<true> of_process_;
  static inline std::atomic<bool> trusted_{true};
};

}  // namespace cupool::engine
