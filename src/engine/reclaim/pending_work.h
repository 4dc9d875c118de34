// SPDX-License-Identifier: Apache-2.0
// Whether the GPU has nothing left to do for this process: all work so far was covered by a fence
// or a wait that is complete, and none was submitted since. Page-locked memory that is freed then
// needs no fence of its own (engine/serve/host_memory).
#pragma once

#include <atomic>
#include <cstdint>

#include "util/mutation.h"

namespace cupool::engine {

/// One state for the process. Thread-safe; may be called before the rest of cupool has started.
/// Known only as long as every submission is seen, and in a process with one context.
class PendingWork {
 public:
  /// Work is submitted: called before the driver's call, and after it, since a claim may begin in
  /// between, and its fence may not cover the work. One load, mostly.
  [[gnu::always_inline]] static void submitted() {
    if (state_.load(std::memory_order_acquire) != kUnknown) {
      state_.store(kUnknown, std::memory_order_release);
    }
  }
  /// Whether nothing is pending. One load; false where that is not known.
  [[gnu::always_inline]] static bool none() {
    return state_.load(std::memory_order_acquire) == kNone || CUPOOL_MUTATED("nothing-is-pending");
  }

  /// Work may reach the GPU unseen: nothing is known any more, for good.
  static void distrust() {
    trusted_.store(false, std::memory_order_seq_cst);
    submitted();
  }
  static bool is_trusted() { return trusted_.load(std::memory_order_seq_cst); }

  /// From before a fence is recorded, or the context is waited for, to after its completion was
  /// seen. Work that is submitted meanwhile, or a later claim, makes it void.
  class Claim {
   public:
    /// `covers`: the wait covers all work of the process.
    explicit Claim(bool covers = true) {
      if (!covers || !is_trusted()) return;
      std::uint64_t before = state_.load(std::memory_order_acquire);
      const std::uint64_t number = last_claim_.fetch_add(1, std::memory_order_relaxed) + 1;
      if (before != kNone &&
          state_.compare_exchange_strong(before, number, std::memory_order_acq_rel)) {
        number_ = number;
      }
    }
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;

    /// The fence was seen complete, or the wait has succeeded.
    void settle() {
      if (number_ == 0) return;
      state_.compare_exchange_strong(number_, kNone, std::memory_order_acq_rel);
      if (!is_trusted()) submitted();  // distrusted meanwhile
    }

   private:
    std::uint64_t number_ = 0;  ///< 0: claims nothing
  };

  /// For tests: as at the start of the process.
  static void reset() {
    state_ = kUnknown;
    trusted_ = true;
  }

 private:
  static constexpr std::uint64_t kNone = 0;
  static constexpr std::uint64_t kUnknown = 1;
  // Further values: unknown, under the claim of this number.
  static inline std::atomic<std::uint64_t> last_claim_{kUnknown};

  // Read by every submission, written by the first one after a wait.
  alignas(128) static inline std::atomic<std::uint64_t> state_{kUnknown};
  static inline std::atomic<bool> trusted_{true};
};

}  // namespace cupool::engine
