// What CUPOOL_MODE=observe measured of a program whose memory it did not serve, beside the counters
// and times that every run has. Plain data, taken at one moment.
#pragma once

#include <cstdint>

#include "stats/histogram.h"

namespace cupool::stats {

/// All devices together. Times in nanoseconds, summed over threads.
struct Observation {
  std::uint64_t threads = 0;  ///< that allocated or freed
  std::uint64_t mallocs = 0;  ///< that succeeded
  std::uint64_t malloc_ns = 0;
  std::uint64_t frees = 0;  ///< that succeeded, of memory that was seen allocated
  std::uint64_t free_ns = 0;
  std::uint64_t busy_frees = 0;    ///< work of the context was pending when they began
  std::uint64_t busy_free_ns = 0;  ///< their time: the stall
  std::uint64_t unknown_frees =
      0;  ///< of which the driver could not be asked: a capture, before 12.5
  HistogramSummary busy_free_time;
  HistogramSummary idle_free_time;
  std::uint64_t fresh_blocks = 0;        ///< blocks that pooling would have had to make
  std::uint64_t live_peak_bytes = 0;     ///< requested bytes; each device's peak, added up
  std::uint64_t rounded_peak_bytes = 0;  ///< the same in cupool's size classes
  std::uint64_t pool_most_bytes = 0;     ///< the most that pooling would have held
  std::uint64_t device_total_bytes = 0;  ///< memory of the devices that were used
};

}  // namespace cupool::stats
