// SPDX-License-Identifier: Apache-2.0
// Measurements of CUPOOL_MODE=observe, in addition to the counters and times of every run. Plain
// data, taken at one moment.
#pragma once

#include <cstdint>

#include "stats/histogram.h"

namespace cupool::stats {

/// All devices together. Times in nanoseconds, summed over threads.
struct Observation {
  std::uint64_t threads = 0;  ///< threads with allocations or frees
  std::uint64_t mallocs = 0;  ///< successful ones
  std::uint64_t malloc_ns = 0;
  std::uint64_t frees = 0;  ///< successful ones, of memory whose allocation was seen
  std::uint64_t free_ns = 0;
  std::uint64_t busy_frees = 0;     ///< began while work of the context was pending
  std::uint64_t busy_free_ns = 0;   ///< their time: the stall
  std::uint64_t unknown_frees = 0;  ///< unknown: during a capture, or drivers before 12.5
  HistogramSummary busy_free_time;
  HistogramSummary idle_free_time;
  std::uint64_t fresh_blocks = 0;        ///< blocks that pooling would have to allocate
  std::uint64_t live_peak_bytes = 0;     ///< requested bytes; sum of the devices' peaks
  std::uint64_t rounded_peak_bytes = 0;  ///< the same in cupool's size classes
  std::uint64_t pool_most_bytes = 0;     ///< upper bound of memory held by pooling
  std::uint64_t device_total_bytes = 0;  ///< memory of the used devices
};

}  // namespace cupool::stats
