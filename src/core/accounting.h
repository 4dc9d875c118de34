// Which figures a block counts in: said once, for serving, freeing and losing it.
#pragma once

#include <cstdint>

#include "core/block.h"
#include "stats/device_stats.h"

namespace cupool::core {

inline std::int64_t signed_bytes(std::uint64_t bytes) {
  return static_cast<std::int64_t>(bytes);
}

/// The hot path's time is taken of one call in so many, which then stands for all of them.
/// Odd, so that programs that allocate and free in turn have both timed.
inline constexpr std::uint64_t kTimedShare = 63;
inline thread_local std::uint64_t untimed_calls = 0;  ///< to come before the next one that is
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

/// A block of ours becomes the program's (sign +1) or ceases to be (-1).
inline void count_live(stats::DeviceStats& stats, const Block& block, std::int64_t sign) {
  using stats::Gauge;
  stats.gauge_add(Gauge::application_bytes, sign * signed_bytes(block.requested));
  stats.gauge_add(Gauge::rounding_bytes, sign * signed_bytes(block.capacity - block.requested));
  stats.gauge_add(Gauge::device_bytes, sign * signed_bytes(block.requested));
}

/// The same for a block that the driver serves.
inline void count_passed(stats::DeviceStats& stats, const Block& block, std::int64_t sign) {
  using stats::Gauge;
  stats.gauge_add(Gauge::passthrough_bytes, sign * signed_bytes(block.requested));
  stats.gauge_add(Gauge::device_bytes, sign * signed_bytes(block.requested));
}

}  // namespace cupool::core
