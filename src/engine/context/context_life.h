// SPDX-License-Identifier: Apache-2.0
// Whether a context is usable, and which of its lives that is: a handle that comes back gets the
// same object. Apart from the context, so that every interleaving with its ends can be explored.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/context/context_gate.h"

namespace cupool::engine {

/// Thread-safe. Ends come one at a time, while the gate of the context is closed, and so do
/// revivals.
class ContextLife {
 public:
  /// Counts the lives. Who reads the number of a life that has begun, or is about to, sees that the
  /// one before it has ended.
  std::uint64_t incarnation() const { return incarnation_.load(std::memory_order_acquire); }

  /// False after a sticky error (I7) or the end of the context: all calls pass through.
  bool usable() const { return state_.load(std::memory_order_acquire) == State::usable; }
  bool gone() const { return state_.load(std::memory_order_acquire) == State::gone; }

  /// Publishes nothing: who sees it leaves the context alone.
  void set_poisoned() {
    State usable = State::usable;
    state_.compare_exchange_strong(usable, State::poisoned, std::memory_order_relaxed);
  }
  void end() {
    state_.store(State::gone, std::memory_order_release);
    incarnation_.fetch_add(1, std::memory_order_release);
  }
  /// Between the end and a look at which blocks are live, and between making a block live again and
  /// a look at the life: one of the two threads sees the other.
  static void fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
  void revive() { state_.store(State::usable, std::memory_order_release); }
  /// Revives a context whose end is over. False: it is still being decided, or cleaned up after.
  /// Looks at the life first: between the two looks the gate may close, and the end begin.
  bool begin_again(const ContextGate& gate) {
    const bool ended = gone();
    if (gate.is_closed()) return false;
    if (ended) revive();
    return true;
  }

 private:
  enum class State { usable, poisoned, gone };

  std::atomic<State> state_{State::usable};
  std::atomic<std::uint64_t> incarnation_{1};
};

}  // namespace cupool::engine
