// SPDX-License-Identifier: Apache-2.0
// Threads inside a short section with driver calls, which another thread waits out: a capture that
// begins, or the end of a context.
#pragma once

#include <sched.h>
#include <time.h>

#include <atomic>
#include <cstdint>

#include "util/clock.h"
#include "util/uncancelled.h"

namespace cupool::engine {

/// Thread-safe. One atomic addition at each end of a use.
class UseCount {
 public:
  /// One use, sequentially consistent with what the one who waits has published before.
  class Use {
   public:
    explicit Use(UseCount& count) : count_(count) {
      count_.users_.fetch_add(1, std::memory_order_seq_cst);
    }
    ~Use() { count_.users_.fetch_sub(1, std::memory_order_release); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    UseCount& count_;
  };

  /// One that was inside at a reset() still counts itself out: below zero there is none.
  bool any() const { return users_.load(std::memory_order_seq_cst) > 0; }

  /// Returns when no thread is inside. False: one still is after ten seconds. It may wait in the
  /// driver for room in a stream's queue.
  bool wait_until_none() const {
    constexpr std::uint64_t kLongestUseNs = 10'000'000'000;
    constexpr int kYields = 64;
    if (!any()) return true;
    const util::Uncancelled throughout;
    const std::uint64_t begin = util::now_ns();
    for (int looks = 0; any(); ++looks) {
      if (util::now_ns() - begin > kLongestUseNs) return false;
      if (looks < kYields) {
        sched_yield();
      } else {  // yielding does not let a thread of lower real-time priority run
        const timespec pause{0, 100'000};
        nanosleep(&pause, nullptr);
      }
    }
    return true;
  }

  /// In a forked child, and in tests.
  void reset() { users_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<int> users_{0};
};

}  // namespace cupool::engine
