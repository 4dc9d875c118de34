// SPDX-License-Identifier: Apache-2.0
// The figures in which a block counts, defined once for allocation, free and loss.
#pragma once

#include <cstdint>

#include "engine/block/block.h"
#include "stats/device_stats.h"

namespace cupool::engine {

inline std::int64_t signed_bytes(std::uint64_t bytes) {
  return static_cast<std::int64_t>(bytes);
}

/// One call in this many is timed on the hot path, and stands for all of them. Odd, so that a
/// program that alternates allocations and frees has both timed.
inline constexpr std::uint64_t kTimedShare = 63;
inline thread_local std::uint64_t untimed_calls = 0;  ///< calls left before the next timed one
inline bool is_timed_next() {
  return untimed_calls == 0;
}
inline void count_untimed() {
  --untimed_calls;
}
inline bool is_timed() {
  if (is_timed_next()) {
    untimed_calls = kTimedShare - 1;
    return true;
  }
  count_untimed();
  return false;
}

/// A block of cupool becomes live (sign +1) or stops being live (-1).
inline void count_live(stats::DeviceStats& stats, std::uint64_t requested, std::uint64_t capacity,
                       std::int64_t sign) {
  using stats::Gauge;
  stats.gauge_add(Gauge::application_bytes, sign * signed_bytes(requested));
  stats.gauge_add(Gauge::rounding_bytes, sign * signed_bytes(capacity - requested));
  stats.gauge_add(Gauge::device_bytes, sign * signed_bytes(requested));
}
inline void count_live(stats::DeviceStats& stats, const Block& block, std::int64_t sign) {
  count_live(stats, block.requested, block.capacity, sign);
}

/// A block is taken from the backend (+1) or released to it (-1): counts plain memory only.
inline void count_plain(stats::DeviceStats& stats, const Block& block, std::int64_t sign) {
  if (block.source != BlockSource::malloc) return;
  stats.gauge_add(stats::Gauge::plain_bytes, sign * signed_bytes(block.capacity));
}

/// Counts a passed-through block.
inline void count_passed(stats::DeviceStats& stats, const Block& block, std::int64_t sign) {
  using stats::Gauge;
  stats.gauge_add(Gauge::passthrough_bytes, sign * signed_bytes(block.requested));
  stats.gauge_add(Gauge::device_bytes, sign * signed_bytes(block.requested));
}

}  // namespace cupool::engine
