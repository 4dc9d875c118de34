// SPDX-License-Identifier: Apache-2.0
// The charts of the page. Each is an SVG with a title and a description; the page puts a table of
// its figures beside it. Charts show figures of the report only.
#pragma once

#include <string>
#include <vector>

#include "cli/page/model.h"

namespace cupool::cli {

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
std::string peaks_chart(const std::string& id, const Report& report, const DeviceReport& device);

/// Memory of a device over time: a stack of the memory that cupool held, and lines for the pool and
/// the whole device. "" if the time series has fewer than two points.
std::string memory_chart(const std::string& id, const Report& report, const DeviceReport& device);

/// Growth, trims, rescues and waits over time. "" without events.
std::string events_chart(const std::string& id, const Report& report);

/// Requests by size. "" without a histogram.
std::string sizes_chart(const std::string& id, const DeviceReport& device);

/// A kind of call and its times.
struct NamedTime {
  std::string name;
  TimeFigures time;
};

/// Percentiles, and distributions where the report has them, on logarithmic axes.
std::string latency_chart(const std::string& id, const std::vector<NamedTime>& times);

}  // namespace cupool::cli
