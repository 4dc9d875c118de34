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

/// Those of a context. Thread-safe.
class HostWorkCalls {
 public:
  /// One call of the calling thread, from before it until its work is noted. A thread that leaves
  /// it by a jump counts for good: every later free waits for its context.
  class Call {
   public:
    /// Null: no other thread can see the work before the call returns.
    explicit Call(HostWorkCalls* calls);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    HostWorkCalls* const calls_;
    std::atomic<std::uint64_t>* line_ = nullptr;
  };

  /// Whether a call is under way. One load.
  [[gnu::always_inline]] bool any() const {
    return under_way_.load(std::memory_order_acquire) != 0 &&
           !CUPOOL_MUTATED("forgets-calls-under-way");
  }
  /// Whether all work is noted that the calling thread may have seen. Waits a moment for that.
  bool are_noted() const { return !any() || wait_for_notes(); }

  /// Calls of no context that is known, from before the engine has started.
  static HostWorkCalls& early() { return early_; }

  /// For tests: no thread is in a call.
  static void reset() {
    for (Line& line : lines_) line.calls = 0;
  }

 private:
  // Of a thread of its own, mostly, in whatever contexts. The calls under way, and above them a
  // number that is another one whenever they begin anew: then all from before are over.
  struct alignas(128) Line {
    std::atomic<std::uint64_t> calls{0};
  };

  bool wait_for_notes() const;

  static HostWorkCalls early_;
  static std::array<Line, kHostWorkLines> lines_;

  // Of this context. After the line at both ends of a call. Read by every free.
  alignas(128) std::atomic<int> under_way_{0};
};

}  // namespace cupool::engine
