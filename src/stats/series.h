// SPDX-License-Identifier: Apache-2.0
// The time series: samples of gauges and counters over the whole run, in bounded memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "stats/device_stats.h"

namespace cupool::stats {

/// One device at one moment. Counters are totals since the start, so that samples may be dropped.
struct DeviceSample {
  int ordinal = -1;
  std::array<std::int64_t, kGauges> gauges{};
  std::array<std::uint64_t, kCounters> counters{};
  PoolFigures pool;
  bool has_device_memory = false;  ///< whether the driver was asked and answered
  std::uint64_t device_free_bytes = 0;
  std::uint64_t device_total_bytes = 0;
};

struct Sample {
  std::uint64_t time_ns = 0;  ///< see since_start_ns()
  std::vector<DeviceSample> devices;
};

/// The samples that are kept.
struct Series {
  std::uint64_t interval_ns = 0;       ///< as set; 0: no series
  std::uint64_t kept_interval_ns = 0;  ///< between the samples that are kept
  std::vector<Sample> samples;
};

/// Keeps at most kMostSamples samples. When full, it drops every second one and from then on
/// accepts only every second one, so that the whole run is covered evenly. Thread-safe.
class SampleRing {
 public:
  static constexpr std::size_t kMostSamples = 1024;

  explicit SampleRing(std::uint64_t interval_ns) : interval_ns_(interval_ns) {}

  /// Adds or skips the sample of one interval. Throws only std::bad_alloc, without effect.
  void add(Sample sample);
  Series read() const;

 private:
  const std::uint64_t interval_ns_;
  mutable std::mutex mutex_;
  std::vector<Sample> samples_;
  std::uint64_t stride_ = 1;  ///< one in `stride_` is kept
  std::uint64_t offered_ = 0;
};

/// The current figures of all active devices, without the device's memory, which the caller adds.
/// Throws only std::bad_alloc.
Sample sample_figures();

}  // namespace cupool::stats
