// SPDX-License-Identifier: Apache-2.0
// The program's calls of MPI (entry/mpi_calls). By them others come to see its memory, outside
// CUDA's order: a process that has mapped it, or a network card. The driver's free would have
// waited for the work before it, so that work has to be complete at the program's next such call.
//
// Once the process has shown that its calls are seen, frees therefore need not wait: the call does
// (engine/serve/messages).
#pragma once

#include <atomic>
#include <cstdint>

namespace cupool::engine {

/// One state for the process. Thread-safe.
class MessageCalls {
 public:
  /// A call has come by the guard.
  static void note() {
    if (!seen()) seen_.store(true, std::memory_order_release);
  }
  static bool seen() { return seen_.load(std::memory_order_acquire); }

  /// The program has MPI's function itself: calls of it are not seen.
  static void note_unseen_route() { unseen_route_.store(true, std::memory_order_release); }
  static bool any_unseen_route() { return unseen_route_.load(std::memory_order_acquire); }

  /// After a free that did not wait.
  static void count_free() { frees_.fetch_add(1, std::memory_order_release); }
  /// The number of such frees.
  static std::uint64_t frees() { return frees_.load(std::memory_order_acquire); }
  /// Whether the work before the first `frees` of them is complete.
  static bool are_settled(std::uint64_t frees) {
    return settled_.load(std::memory_order_acquire) >= frees;
  }
  static void settle(std::uint64_t frees) {
    std::uint64_t before = settled_.load(std::memory_order_relaxed);
    while (before < frees &&
           !settled_.compare_exchange_weak(before, frees, std::memory_order_release)) {
    }
  }

  /// For tests: as at the start of the process.
  static void reset() {
    seen_ = unseen_route_ = false;
    frees_ = settled_ = 0;
  }

 private:
  static inline std::atomic<bool> seen_{false};
  static inline std::atomic<bool> unseen_route_{false};
  static inline std::atomic<std::uint64_t> settled_{0};
  alignas(128) static inline std::atomic<std::uint64_t> frees_{0};
};

}  // namespace cupool::engine
