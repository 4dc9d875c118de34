// SPDX-License-Identifier: Apache-2.0
// The start of a device's pools. The first block of any pool in a process takes the driver about 10
// ms (docs/measurements). So a background thread allocates it, once the program allocates memory
// that it has freed before. Until then the driver's own functions serve allocations.
#pragma once

#include <atomic>
#include <cstdint>

namespace cupool::engine {

class PoolBackend;
class StreamSource;

/// One per device. Thread-safe.
class PoolStart {
 public:
  /// `pools`: null if the device has none. Unless `may_wait`, they start with their first block.
  PoolStart(PoolBackend* pools, bool may_wait)
      : pools_(pools), may_wait_(may_wait && pools != nullptr), needless_(pools == nullptr) {}

  /// Whether allocations are served now.
  bool is_done() const {
    return state_.load(std::memory_order_acquire) == State::done ||
           needless_.load(std::memory_order_acquire);
  }
  /// Called at an allocation before the pools are started. True for one such call: start() is due
  /// now. A program that never allocates again after a free does not need pools.
  bool becomes_due();
  void count_free_by_driver() {
    if (!is_done()) freed_by_driver_.fetch_add(1, std::memory_order_relaxed);
  }
  /// Waits for the start, and returns whether it is done. A program that allocates and frees
  /// without a pause can keep the driver from the thread that starts the pools (docs/measurements).
  /// So its allocations wait once the start is 15 ms overdue: 100 ms at most, and again each
  /// second.
  bool wait() const;
  /// Whether the start is due and not yet begun.
  bool is_due() const { return state_.load(std::memory_order_acquire) == State::due; }
  void start(StreamSource& context);
  /// Leaves the start to start(), if allowed. Called before the first allocation.
  void leave_for_later() {
    if (may_wait_) state_.store(State::waits, std::memory_order_release);
  }
  /// The pools start with their first block.
  void leave_to_first_block() { state_.store(State::done, std::memory_order_release); }
  /// From now on no new memory comes from the pools.
  void give_up() { needless_.store(true, std::memory_order_release); }

 private:
  enum class State { waits, due, done };

  PoolBackend* const pools_;
  const bool may_wait_;
  std::atomic<bool> needless_;
  std::atomic<State> state_{State::done};
  std::atomic<unsigned> freed_by_driver_{0};  ///< blocks freed before the pools' start
  std::atomic<std::uint64_t> due_since_ns_{0};
};

}  // namespace cupool::engine
