// SPDX-License-Identifier: Apache-2.0
// The program's calls of MPI (entry/mpi_calls). By them others come to see its memory, outside
// CUDA's order: a process that has mapped it, or a network card. The driver's free would have
// waited for the work before it, so that work has to be complete at the program's next such call.
//
// Once the process has shown that its calls are seen, frees therefore need not wait: the call does
// (engine/serve/messages).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine/reclaim/epoch_number.h"

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

  /// The calling thread's own of these frees, of which its completions take care too.
  struct Own {
    static constexpr std::size_t kContexts = 8;
    struct Newest {
      const void* context;
      EpochNumber epoch;
    };
    std::array<Newest, kContexts> newest;
    bool any;   ///< since they were last settled
    bool more;  ///< in more contexts than there are entries
  };
  static Own& own() { return own_; }
  static void note_own(const void* context, EpochNumber epoch) {
    own_.any = true;
    for (Own::Newest& each : own_.newest) {
      if (each.context != nullptr && each.context != context) continue;
      each = {context, epoch};
      return;
    }
    own_.more = true;
  }

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
    own_ = Own{};
  }

 private:
  static inline std::atomic<bool> seen_{false};
  static inline std::atomic<bool> unseen_route_{false};
  static inline thread_local Own own_{};
  static inline std::atomic<std::uint64_t> settled_{0};
  alignas(128) static inline std::atomic<std::uint64_t> frees_{0};
};

}  // namespace cupool::engine
