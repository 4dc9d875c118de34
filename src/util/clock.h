// SPDX-License-Identifier: Apache-2.0
// Clocks: monotonic time for durations, wall time for the report's heading.
// One place, so that every duration in the statistics comes from the same clock.
#pragma once

#include <time.h>

#include <cstdint>

namespace cupool::util {

namespace detail {
inline std::uint64_t read_clock_ns(clockid_t clock) noexcept {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(t.tv_nsec);
}
}  // namespace detail

/// Monotonic time in nanoseconds, for durations only. Served by the vDSO: no system call.
/// Thread-safe and async-signal-safe; cannot fail.
inline std::uint64_t now_ns() noexcept {
  return detail::read_clock_ns(CLOCK_MONOTONIC);
}

/// Wall time in nanoseconds since 1970-01-01 UTC. Thread-safe; cannot fail.
inline std::uint64_t wall_ns() noexcept {
  return detail::read_clock_ns(CLOCK_REALTIME);
}

}  // namespace cupool::util
