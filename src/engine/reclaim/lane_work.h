// SPDX-License-Identifier: Apache-2.0
// Whether the lane's stream (engine/reclaim/lane.h) has work since its last mark, so that the next
// free has to mark it again. A wait of the program for the stream makes a mark unnecessary.
#pragma once

#include <atomic>
#include <cstdint>

namespace cupool::engine {

/// One state for the process. Thread-safe.
class LaneWork {
 public:
  /// Work was submitted: called after the driver's call.
  [[gnu::always_inline]] static void submitted() {
    if (state_.load(std::memory_order_acquire) != kUnmarked) {
      state_.store(kUnmarked, std::memory_order_release);
    }
  }
  /// Whether a free needs a mark. One load.
  [[gnu::always_inline]] static bool any() {
    return state_.load(std::memory_order_acquire) != kNone;
  }
  /// For tests: as at the start of the process.
  static void reset() { state_ = kNone; }

  /// From before a mark is recorded, or the program waits, to after it. Work that is submitted
  /// meanwhile stays unmarked, and so does what another claim holds already.
  class Claim {
   public:
    /// `covers`: the wait is one for the lane's stream.
    explicit Claim(bool covers) {
      std::uint64_t expected = kUnmarked;
      if (!covers || !any()) return;
      const std::uint64_t number = last_claim_.fetch_add(1, std::memory_order_relaxed) + 1;
      if (state_.compare_exchange_strong(expected, number, std::memory_order_acq_rel)) {
        number_ = number;
      }
    }
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;

    /// The mark is recorded, or the wait has succeeded.
    void settle() {
      if (number_ == 0) return;
      state_.compare_exchange_strong(number_, kNone, std::memory_order_acq_rel);
    }

   private:
    std::uint64_t number_ = 0;  ///< 0: claims nothing
  };

 private:
  static constexpr std::uint64_t kNone = 0;
  static constexpr std::uint64_t kUnmarked = 1;
  // Further values: unmarked work under the claim of this number.
  static inline std::atomic<std::uint64_t> last_claim_{kUnmarked};

  // Written by submissions, marks and waits.
  alignas(128) static inline std::atomic<std::uint64_t> state_{kNone};
};

}  // namespace cupool::engine
