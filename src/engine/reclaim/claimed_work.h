// SPDX-License-Identifier: Apache-2.0
// Whether there is work that nothing covers yet: no mark of the lane (engine/reclaim/lane_work), no
// fence seen complete (engine/reclaim/pending_work). Who records the mark or the fence claims the
// work before, and settles after; work that is submitted in between makes the claim void. Nothing
// is settled while a call is under way: its work may come behind the mark, and be known of before
// the call returns.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/reclaim/calls_under_way.h"

namespace cupool::engine {

/// Thread-safe. `kAtFirst`: whether there is such work at the start of the process.
template <bool kAtFirst>
class alignas(128) ClaimedWork {
 public:
  /// Work is about to be submitted, or was: called before the driver's call, with that under way,
  /// and after it. One load, mostly.
  [[gnu::always_inline]] void submitted() {
    if (state_.load(std::memory_order_seq_cst) != kUnclaimed) {
      state_.store(kUnclaimed, std::memory_order_relaxed);
    }
  }
  /// Whether there is work that is not covered. One load.
  [[gnu::always_inline]] bool any() const {
    return state_.load(std::memory_order_acquire) != kNone;
  }
  /// Whether work was submitted, or was about to be, since the last claim. One load.
  bool any_unclaimed() const { return state_.load(std::memory_order_acquire) == kUnclaimed; }
  /// As if work had been submitted, whatever is claimed.
  void take_away() { state_.store(kUnclaimed, std::memory_order_seq_cst); }
  /// For tests: as at the start of the process.
  void reset() { state_ = kFirst; }

  /// From before the work is covered to after it. Joins a claim of another thread: as long as that
  /// stands, nothing was submitted since, and what covers this claim comes later still.
  class Claim {
   public:
    Claim(ClaimedWork& work, bool covers) : work_(work) {
      if (!covers || !work.any()) return;
      const std::uint64_t number = work.last_claim_.fetch_add(1, std::memory_order_relaxed) + 1;
      std::uint64_t found = kUnclaimed;
      if (work.state_.compare_exchange_strong(found, number, std::memory_order_seq_cst,
                                              std::memory_order_acquire)) {
        number_ = number;
        is_first_ = true;
      } else if (found != kNone) {
        number_ = found;
      }
    }
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;

    /// The work is covered. Without effect while a call is under way.
    void settle() {
      if (number_ == kNone || CallsUnderWay::any()) return;
      std::uint64_t found = number_;
      work_.state_.compare_exchange_strong(found, kNone, std::memory_order_release,
                                           std::memory_order_relaxed);
    }
    /// Whether there was work that nobody had claimed.
    bool is_first() const { return is_first_; }
    /// Claims nothing any more.
    void give_up() { number_ = kNone; }

   private:
    ClaimedWork& work_;
    std::uint64_t number_ = kNone;  ///< kNone: claims nothing
    bool is_first_ = false;
  };

 private:
  static constexpr std::uint64_t kNone = 0;
  static constexpr std::uint64_t kUnclaimed = 1;
  // Further values: work under the claim of this number.
  static constexpr std::uint64_t kFirst = kAtFirst ? kUnclaimed : kNone;
  std::atomic<std::uint64_t> state_{kFirst};
  std::atomic<std::uint64_t> last_claim_{kUnclaimed};
};

}  // namespace cupool::engine
