// SPDX-License-Identifier: Apache-2.0
// Driver calls under way whose work touches host memory. It is noted after the call
// (engine/reclaim/host_work), and another thread may see what it does before: a flag that a kernel
// sets in page-locked memory, or what a callback says. A free of that thread has to wait for the
// work, as the driver's does (contract 2), so it waits for the note first.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "engine/reclaim/call_lines.h"
#include "util/mutation.h"

namespace cupool::engine {

/// One state for the process. Thread-safe; may be used before the rest of cupool has started.
class HostWorkCalls {
  // Of a thread of its own, mostly. The calls under way, and above them a number that is another
  // one whenever they begin anew: then all from before are over.
  struct alignas(128) Line {
    std::atomic<std::uint64_t> calls{0};
  };

 public:
  /// One call of the calling thread, from before it until its work is noted.
  class Call {
   public:
    /// `is_seen`: whether another thread may see the work before the call returns.
    explicit Call(bool is_seen);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Line* line_ = nullptr;  ///< null: not counted
  };

  /// Whether all work is noted that the calling thread may have seen. Waits a moment for that. One
  /// load if no call is under way.
  [[gnu::always_inline]] static bool are_noted() {
    return under_way_.load(std::memory_order_acquire) == 0 ||
           CUPOOL_MUTATED("forgets-calls-under-way") || wait_for_notes();
  }

  /// For tests: as at the start of the process.
  static void reset() {
    for (Line& line : lines_) line.calls = 0;
    under_way_ = 0;
  }

 private:
  static bool wait_for_notes();

  static std::array<Line, kCallLines> lines_;
  // Written behind the line before a call, and behind it after one. Read by every free.
  alignas(128) static std::atomic<int> under_way_;
};

}  // namespace cupool::engine
