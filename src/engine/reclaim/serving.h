// SPDX-License-Identifier: Apache-2.0
// Whether the engine serves at present: one word for every obstacle, so that the hot path asks
// once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "util/mutation.h"

namespace cupool::engine {

/// One state for the process. Thread-safe. A thread sees a change of another thread no earlier than
/// that thread's other effects. The driver is no more exact about captures.
class Serving {
 public:
  /// Whether allocations and frees may be served from cupool's memory. One relaxed load.
  static bool open() {
    return closed_.load(std::memory_order_relaxed) == 0 || CUPOOL_MUTATED("serves-in-capture");
  }

  /// The same, in one order with all captures that begin (StreamContexts::begin_capture()).
  static bool open_for_certain() { return closed_.load(std::memory_order_seq_cst) == 0; }

  /// Whether a stream of the process captures: the driver answers allocations and frees (contract
  /// 9).
  static bool any_capture() { return closed_.load(std::memory_order_seq_cst) >= kCapture; }
  static void capture_begins() { closed_.fetch_add(kCapture, std::memory_order_seq_cst); }
  static void captures_end(std::size_t count) {
    closed_.fetch_sub(static_cast<std::uint32_t>(count) * kCapture, std::memory_order_acq_rel);
  }

  /// Whether the engine has stepped aside for good (StepAside::stop_serving()).
  static bool stepped_aside() {
    return (closed_.load(std::memory_order_relaxed) & kSteppedAside) != 0;
  }
  /// Steps aside. True for the first call.
  static bool step_aside() {
    return (closed_.fetch_or(kSteppedAside, std::memory_order_acq_rel) & kSteppedAside) == 0;
  }
  /// An engine starts.
  static void start() { closed_.fetch_and(~kSteppedAside, std::memory_order_acq_rel); }

 private:
  static constexpr std::uint32_t kSteppedAside = 1;
  static constexpr std::uint32_t kCapture = 2;  ///< for each capture
  static inline std::atomic<std::uint32_t> closed_{0};
};

}  // namespace cupool::engine
