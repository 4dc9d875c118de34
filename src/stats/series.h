// The time series: samples of gauges and counters over the whole run, in bounded memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "stats/device_stats.h"

namespace cupool::stats {

/// One device at one moment. Counters are totals since the start, so that samples may be left out.
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

/// What is kept of the samples.
struct Series {
  std::uint64_t interval_ns = 0;       ///< as asked for; 0: no series
  std::uint64_t kept_interval_ns = 0;  ///< between the samples that are kept
  std::vector<Sample> samples;
};

/// Keeps at most kMostSamples samples: when they are full, every second one goes and from then on
/// only every second one comes, so that the whole run is covered evenly. Thread-safe.
class SampleRing {
 public:
  static constexpr std::size_t kMostSamples = 1024;

  explicit SampleRing(std::uint64_t interval_ns) : interval_ns_(interval_ns) {}

  /// Takes the sample of one interval, or passes it over. Throws only std::bad_alloc, and then
  /// nothing has changed.
  void add(Sample sample);
  Series read() const;

 private:
  const std::uint64_t interval_ns_;
  mutable std::mutex mutex_;
  std::vector<Sample> samples_;
  std::uint64_t stride_ = 1;  ///< one in so many is kept
  std::uint64_t offered_ = 0;
};

/// The figures of all active devices now; without the device's memory, which the caller asks for.
/// Throws only std::bad_alloc.
Sample sample_figures();

}  // namespace cupool::stats
