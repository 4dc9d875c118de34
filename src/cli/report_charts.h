// The pictures of the page. Each is an SVG with a title and a description, and has its figures in a
// table beside it, which the page adds. Nothing but what the report holds is drawn.
#pragma once

#include <string>
#include <vector>

#include "cli/report_model.h"

namespace cupool::cli {

/// One part of a whole, with the class of its colour.
struct Part {
  std::string name;
  std::uint64_t number = 0;
  std::string css_class;
};

/// One bar that `parts` fill, with a legend. "" if there is nothing to show.
std::string parts_chart(const std::string& id, const std::string& title,
                        const std::vector<Part>& parts);

/// Highest value and value at the end of each gauge of a device, as bars.
std::string peaks_chart(const std::string& id, const Report& report, const DeviceReport& device);

/// Memory of a device over time: what cupool held, stacked, and lines for the pool and the whole
/// device. "" without a time series of at least two points.
std::string memory_chart(const std::string& id, const Report& report, const DeviceReport& device);

/// When growth, trims, rescues and waits happened. "" without events.
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
