// SPDX-License-Identifier: Apache-2.0
// Decimation by two: samples whose number is a multiple of the stride are kept.
#include "stats/series.h"

#include <utility>

#include "stats/timeline.h"

namespace cupool::stats {

void SampleRing::add(Sample sample) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (offered_ % stride_ != 0) {
    ++offered_;
    return;
  }
  if (samples_.size() == kMostSamples) {
    for (std::size_t i = 1; 2 * i < samples_.size(); ++i) samples_[i] = std::move(samples_[2 * i]);
    samples_.resize(kMostSamples / 2);
    stride_ *= 2;
  }
  // With an even number of samples the new one's number is a multiple of the new stride too.
  samples_.push_back(std::move(sample));
  ++offered_;
}

Series SampleRing::read() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {interval_ns_, interval_ns_ * stride_, samples_};
}

Sample sample_figures() {
  Sample sample;
  sample.time_ns = since_start_ns();
  for (int ordinal = 0; ordinal < kMaxDevices; ++ordinal) {
    const DeviceStats& stats = device(ordinal);
    if (!stats.active()) continue;
    DeviceSample figures;
    figures.ordinal = ordinal;
    for (std::size_t i = 0; i < kGauges; ++i) {
      figures.gauges[i] = stats.value(static_cast<Gauge>(i)).current;
    }
    for (std::size_t i = 0; i < kCounters; ++i) {
      figures.counters[i] = stats.value(static_cast<Counter>(i));
    }
    figures.pool = stats.pool_figures();
    sample.devices.push_back(figures);
  }
  return sample;
}

}  // namespace cupool::stats
