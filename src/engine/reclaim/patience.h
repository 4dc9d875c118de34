// SPDX-License-Identifier: Apache-2.0
// The time limit of a call of the program that ran out of memory, and what that call wants.
#pragma once

#include <cstdint>

#include "util/clock.h"

namespace cupool::engine {

/// One per call, for all of its steps: every context, every round, the second attempt of the
/// driver's own function. It starts at its first use, after the first refusal. For one thread.
class Patience {
 public:
  /// An allocation waits only if the driver's would have failed, and for a limited time.
  static constexpr std::uint64_t kLongestNs = 10'000'000'000;

  explicit Patience(std::uint64_t longest_ns = kLongestNs) : longest_ns_(longest_ns) {}

  std::uint64_t left_ns() {
    const std::uint64_t now = util::now_ns();
    if (end_ns_ == 0) end_ns_ = now + longest_ns_;
    return end_ns_ > now ? end_ns_ - now : 0;
  }
  bool over() { return left_ns() == 0; }

  /// The bytes that the call asks for.
  void wants(std::uint64_t bytes) { wanted_bytes_ = bytes; }
  /// 0: not known.
  std::uint64_t wanted_bytes() const { return wanted_bytes_; }

  /// Whether an attempt may be made although what was idle is not all back yet, since some of it
  /// is. There are few such attempts: otherwise others' small frees would use all up.
  bool may_hurry() {
    if (hurried_ == kMostHurried || over()) return false;
    ++hurried_;
    return hurries_ = true;
  }
  /// Whether the last attempt was such a one: the call has not had all yet.
  bool hurries() const { return hurries_; }
  void begin_attempt() { hurries_ = false; }

  /// What the call's attempts on one device have shown, whichever function made them.
  struct Attempts {
    int device = -1;
    bool any = false;       ///< what was idle was given back, and the call was refused again
    bool had_room = false;  ///< at the last look there was room for it
    bool lacked = false;    ///< at the last look all idle memory would not have been enough
  };
  /// The attempts on `device`; those on another one are forgotten.
  Attempts& attempts_on(int device) {
    if (attempts_.device != device) {
      attempts_ = Attempts();
      attempts_.device = device;
    }
    return attempts_;
  }

 private:
  static constexpr unsigned kMostHurried = 8;

  const std::uint64_t longest_ns_;
  std::uint64_t end_ns_ = 0;
  std::uint64_t wanted_bytes_ = 0;
  unsigned hurried_ = 0;
  bool hurries_ = false;
  Attempts attempts_;
};

}  // namespace cupool::engine
