// SPDX-License-Identifier: Apache-2.0
// The charts of the page. Each is an SVG with a title and a description; the page puts a table of
// its figures beside it. Charts show figures of the report only.
#pragma once

#include <string>
#include <vector>

#include "cli/page/model.h"

namespace cupool::cli {

/// The axes that all charts of a kind share on a page: the charts of several devices, processes or
/// runs compare by eye. A chart whose own figures lie beyond them widens them for itself.
struct Scales {
  double stack_bytes = 0;          ///< the highest sum of layers of memory over time
  std::vector<double> line_bytes;  ///< the highest values of its lines
  double series_ns = 0;            ///< its latest sample
  double peak_bytes = 0;           ///< the highest peak of a gauge
  double fastest_ns = 1e12;        ///< of calls
  double slowest_ns = 1;
  std::uint64_t smallest_request = UINT64_MAX;  ///< bounds of buckets with requests
  std::uint64_t largest_request = 0;
  double most_requests = 0;  ///< of one bucket
  double events_ns = 0;      ///< the end of the last event, or of the run
};

/// The scales that hold all of `reports`.
Scales scales_of(const std::vector<Report>& reports);

/// Widens the scales of charts over time (timeline.cpp).
void widen_over_time(const Report& report, Scales* scales);

/// One part of a whole; `css_class` gives its colour.
struct Part {
  std::string name;
  std::uint64_t number = 0;
  std::string css_class;
};

/// A bar divided into `parts`, with a legend. "" if all are 0.
std::string parts_chart(const std::string& id, const std::string& title,
                        const std::vector<Part>& parts);

/// Peak and final value of each gauge of a device, as bars.
std::string peaks_chart(const std::string& id, const Report& report, const DeviceReport& device,
                        const Scales& scales);

/// Memory of a device over time: a stack of the memory that cupool held, and lines for the pool and
/// the whole device. "" if the time series has fewer than two points.
std::string memory_chart(const std::string& id, const Report& report, const DeviceReport& device,
                         const Scales& scales);

/// Growth, trims, rescues and waits over time. "" without events.
std::string events_chart(const std::string& id, const Report& report, const Scales& scales);

/// Requests by size. "" without a histogram.
std::string sizes_chart(const std::string& id, const DeviceReport& device, const Scales& scales);

/// A kind of call and its times.
struct NamedTime {
  std::string name;
  TimeFigures time;
};

/// The kinds of calls of a device that were timed.
std::vector<NamedTime> times_of(const DeviceReport& device);

/// Percentiles, and distributions where the report has them, on logarithmic axes.
std::string latency_chart(const std::string& id, const std::vector<NamedTime>& times,
                          const Scales& scales);

}  // namespace cupool::cli
