// SPDX-License-Identifier: Apache-2.0
// Driver calls under way that submit work. The GPU may begin with the work before such a call
// returns, and another thread may learn of it then. So what is covered is not known meanwhile
// (engine/reclaim/claimed_work), and a query of the stream may answer that it has nothing to do
// (measured: docs/measurements/2026-11-28-blocking-streams).
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "engine/reclaim/call_lines.h"
#include "util/clock.h"

namespace cupool::engine {

/// One state for the process. Thread-safe; may be used before the rest of cupool has started.
class CallsUnderWay {
 public:
  /// One call of the calling thread, from before it to after it. Sequentially consistent with
  /// any(). `into`: default_stream only where the call submits to no explicit one.
  enum class Into : unsigned { explicit_stream, default_stream };
  class Call {
   public:
    [[gnu::always_inline]] explicit Call(Into into = Into::explicit_stream)
        : calls_(lines_[line_of_thread<kCallLines>()].calls[static_cast<unsigned>(into)]) {
      calls_.fetch_add(1, std::memory_order_seq_cst);
    }
    [[gnu::always_inline]] ~Call() { calls_.fetch_sub(1, std::memory_order_release); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    std::atomic<int>& calls_;
  };

  /// Whether there may be one. A thread that left a call by a jump counts for good: work is covered
  /// later than it could be then.
  static bool any() { return any_into(Into::explicit_stream) || any_into(Into::default_stream); }
  /// Waits until each call of one kind that is under way now is over, while others come and go.
  /// False: not within `limit_ns`.
  static bool wait_for(Into into, std::uint64_t limit_ns) {
    const std::uint64_t start_ns = util::now_ns();
    for (const Line& line : lines_) {
      while (line.calls[static_cast<unsigned>(into)].load(std::memory_order_seq_cst) != 0) {
        if (util::now_ns() - start_ns > limit_ns) return false;
        std::this_thread::yield();
      }
    }
    return true;
  }

  /// For tests: as at the start of the process.
  static void reset() {
    for (Line& line : lines_) {
      for (std::atomic<int>& calls : line.calls) calls.store(0, std::memory_order_relaxed);
    }
  }

 private:
  // Threads on lines of their own, mostly: a launch writes nothing that another one reads.
  struct alignas(128) Line {
    std::atomic<int> calls[2];  // NOLINT(modernize-avoid-c-arrays): likewise
  };

  static bool any_into(Into into) {
    for (const Line& line : lines_) {
      const std::atomic<int>& calls = line.calls[static_cast<unsigned>(into)];
      if (calls.load(std::memory_order_seq_cst) != 0) return true;
    }
    return false;
  }

  static Line lines_[kCallLines];  // NOLINT(modernize-avoid-c-arrays): nothing to call where
                                   // nothing is inlined
};

inline CallsUnderWay::Line CallsUnderWay::lines_[kCallLines]{};  // NOLINT(modernize-avoid-c-arrays)

}  // namespace cupool::engine
