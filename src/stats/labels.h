// SPDX-License-Identifier: Apache-2.0
// What figures are called in front of people: the text report, the page, and tables of the command.
// Each label stands once, in counters.def, so that no two of these call a figure differently.
#pragma once

#include <string_view>

#include "stats/device_stats.h"

namespace cupool::stats {

inline constexpr const char* kCounterKeys[] = {
#define CUPOOL_COUNTER(key, unit, label, help) #key,
#include "stats/counters.def"
};
inline constexpr std::string_view kCounterLabels[] = {
#define CUPOOL_COUNTER(key, unit, label, help) label,
#include "stats/counters.def"
};
inline constexpr const char* kGaugeKeys[] = {
#define CUPOOL_GAUGE(key, unit, label, help) #key,
#include "stats/counters.def"
};
inline constexpr std::string_view kGaugeLabels[] = {
#define CUPOOL_GAUGE(key, unit, label, help) label,
#include "stats/counters.def"
};

// Of the driver's pool, whose figures are no gauges of cupool's.
inline constexpr std::string_view kPoolReservedLabel = "pool reserved";
inline constexpr std::string_view kPoolUsedLabel = "pool used";
inline constexpr std::string_view kDriverSlackLabel = "driver slack";

/// The key of a figure in reports for programs.
constexpr const char* key_of(Counter counter) noexcept {
  return kCounterKeys[static_cast<std::size_t>(counter)];
}
constexpr const char* key_of(Gauge gauge) noexcept {
  return kGaugeKeys[static_cast<std::size_t>(gauge)];
}

/// The label of a figure: a name, and a remark in parentheses where the name needs one.
constexpr std::string_view label_of(Counter counter) noexcept {
  return kCounterLabels[static_cast<std::size_t>(counter)];
}
constexpr std::string_view label_of(Gauge gauge) noexcept {
  return kGaugeLabels[static_cast<std::size_t>(gauge)];
}

/// A label without its remark, for charts and headings with little room.
template <typename Figure>
constexpr std::string_view short_label_of(Figure figure) noexcept {
  const std::string_view label = label_of(figure);
  return label.substr(0, label.find(" ("));
}

}  // namespace cupool::stats
