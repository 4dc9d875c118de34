// SPDX-License-Identifier: Apache-2.0
// How long the process was in its lane (engine/reclaim/lane.h), what led away and what ended it,
// for reports. Atomics only: the report at exit reads it although a thread that has ended, or was
// interrupted, may hold the lane's lock for ever.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "stats/lane_figures.h"

namespace cupool::engine {

/// One for the process. The changes are made one after the other, under the lock of the lane.
/// read() is thread-safe at any time. Calls and reasons are literals; times are util::now_ns().
class LaneHistory {
 public:
  static void opened(std::uint64_t now_ns);
  /// Work on another stream, which `call` submits.
  static void away(std::uint64_t now_ns, const char* call);
  static void returned(std::uint64_t now_ns);
  /// Left for good, maybe before it was opened. `call`: null if unknown.
  static void left(std::uint64_t now_ns, const char* why, const char* call);

  /// Empty if there was no work, and nothing that excludes a lane.
  static std::optional<stats::LaneFigures> read(std::uint64_t now_ns);
  /// Whether the process is in its lane. Thread-safe at any time.
  static bool is_inside() { return (word_.load(std::memory_order_relaxed) & 1u) != 0; }
  /// For tests: as at the start of the process.
  static void reset();

 private:
  static void enter(std::uint64_t now_ns);
  static void leave(std::uint64_t now_ns);
  static std::uint64_t inside_ns(std::uint64_t word, std::uint64_t now_ns);

  // One word, so that no reader counts a stay twice. Outside: the time inside so far, doubled.
  // Inside: the time at which a single stay of that length would have begun, doubled, plus 1.
  static std::atomic<std::uint64_t> word_;
  static std::atomic<std::uint64_t> away_;
  static std::atomic<const char*> last_call_;
  static std::atomic<const char*> end_;
  static std::atomic<const char*> end_call_;
};

}  // namespace cupool::engine
