// SPDX-License-Identifier: Apache-2.0
// Charts over time: memory of a device, and events.
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <string_view>

#include "cli/page/charts.h"
#include "cli/page/svg.h"
#include "stats/labels.h"
#include "util/text.h"

namespace cupool::cli {

using util::format_bytes;
using util::format_count;
using util::format_duration_ns;

namespace {

constexpr double kWidth = 1080;
constexpr double kLeft = 84;
constexpr double kRight = 1060;
constexpr double kLegendRow = 20;
constexpr double kHeight = 246;           // of the chart below the legend
constexpr std::size_t kMostPoints = 600;  // more than the chart has columns
constexpr std::size_t kMostHits = 32;     // stops of the Tab key

struct Layer {
  std::string_view name;
  const char* key;
  const char* css_class;
};
constexpr Layer layer_of(stats::Gauge gauge, const char* css_class) {
  return {short_label_of(gauge), key_of(gauge), css_class};
}
// From the bottom up: the program's memory, the pool's addition, the driver's own.
constexpr Layer kLayers[] = {layer_of(stats::Gauge::application_bytes, "c-application"),
                             layer_of(stats::Gauge::rounding_bytes, "c-rounding"),
                             layer_of(stats::Gauge::retired_bytes, "c-retired"),
                             layer_of(stats::Gauge::cached_bytes, "c-cached"),
                             layer_of(stats::Gauge::passthrough_bytes, "c-passed")};
constexpr Layer kLines[] = {{stats::kPoolReservedLabel, "pool_reserved_bytes", "l-reserved"},
                            {"used on the device", "device_used_bytes", "l-device"}};

// Not held by cupool: drawn above its layers.
bool is_passed_through(const Layer& layer) {
  return std::string_view(layer.key) == key_of(stats::Gauge::passthrough_bytes);
}

std::uint64_t value_of(const SeriesPoint& point, const char* key) {
  const auto found = point.values.find(key);
  return found == point.values.end() ? 0 : found->second;
}

bool has_value(const std::vector<SeriesPoint>& points, const char* key) {
  return std::any_of(points.begin(), points.end(),
                     [&](const SeriesPoint& point) { return point.values.count(key) != 0; });
}

// The sum of all layers, in floating point: a hostile report could overflow integers.
double total(const SeriesPoint& point) {
  double sum = 0;
  for (const Layer& layer : kLayers) sum += static_cast<double>(value_of(point, layer.key));
  return sum;
}

std::uint64_t held(const SeriesPoint& point) {
  std::uint64_t sum = 0;
  for (const Layer& layer : kLayers) {
    if (!is_passed_through(layer)) sum += value_of(point, layer.key);
  }
  return sum;
}

// Keeps the highest point of each stretch, so that no peak is lost.
std::vector<SeriesPoint> thinned(const std::vector<SeriesPoint>& points) {
  if (points.size() <= kMostPoints) return points;
  std::vector<SeriesPoint> kept;
  for (std::size_t i = 0; i < kMostPoints; ++i) {
    const std::size_t first = i * points.size() / kMostPoints;
    const std::size_t end = (i + 1) * points.size() / kMostPoints;
    const auto at = points.begin();
    kept.push_back(*std::max_element(
        at + static_cast<std::ptrdiff_t>(first), at + static_cast<std::ptrdiff_t>(end),
        [](const SeriesPoint& a, const SeriesPoint& b) { return total(a) < total(b); }));
  }
  return kept;
}

std::vector<SeriesPoint> points_of(const Report& report, int device) {
  std::vector<SeriesPoint> points;
  for (const SeriesPoint& point : report.series) {
    if (point.device == device) points.push_back(point);
  }
  std::stable_sort(points.begin(), points.end(),
                   [](const SeriesPoint& a, const SeriesPoint& b) { return a.time < b.time; });
  return thinned(points);
}

double time_of(const SeriesPoint& point) {
  return static_cast<double>(point.time);
}

// A step line: a value holds until the next sample.
std::string steps(const std::vector<SeriesPoint>& points, const LinearScale& x,
                  const LinearScale& y, const std::vector<double>& values, bool begin) {
  std::string commands;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const std::string at = coordinate(x(time_of(points[i])));
    if (i == 0) {
      commands += (begin ? "M" : "L") + at + " " + coordinate(y(values[i]));
    } else {
      commands += "H" + at + "V" + coordinate(y(values[i]));
    }
  }
  return commands;
}

// The step line backwards, for the lower edge of an area.
std::string steps_back(const std::vector<SeriesPoint>& points, const LinearScale& x,
                       const LinearScale& y, const std::vector<double>& values) {
  std::string commands =
      "L" + coordinate(x(time_of(points.back()))) + " " + coordinate(y(values.back()));
  for (std::size_t i = points.size() - 1; i > 0; --i) {
    commands += "V" + coordinate(y(values[i - 1])) + "H" + coordinate(x(time_of(points[i - 1])));
  }
  return commands + "Z";
}

// A line may be this many times as high as the stack. Beyond, the stack would be too small to see:
// other processes may use most of a device.
constexpr double kTallest = 3;

std::uint64_t highest_of(const std::vector<SeriesPoint>& points, const char* key) {
  std::uint64_t highest = 0;
  for (const SeriesPoint& point : points) highest = std::max(highest, value_of(point, key));
  return highest;
}

bool is_drawn(const std::vector<SeriesPoint>& points, const Layer& line, double highest) {
  return has_value(points, line.key) &&
         static_cast<double>(highest_of(points, line.key)) <= highest;
}

// The passed-through layer is shown only if it is not empty.
bool is_seen(const std::vector<SeriesPoint>& points, const Layer& layer) {
  return !is_passed_through(layer) || highest_of(points, layer.key) > 0;
}

struct LegendEntry {
  std::string text;
  std::string css_class;
  bool is_line = false;
  double x = 0;
  double y = 0;
};

// Lays out the entries in as many rows as they need, without overlaps.
std::vector<LegendEntry> legend_of(const std::vector<SeriesPoint>& points, double highest) {
  std::vector<LegendEntry> entries;
  for (const Layer& layer : kLayers) {
    if (is_seen(points, layer)) entries.push_back({std::string(layer.name), layer.css_class});
  }
  for (const Layer& line : kLines) {
    if (!has_value(points, line.key)) continue;
    if (is_drawn(points, line, highest)) {
      entries.push_back({std::string(line.name), line.css_class, true});
    } else {
      entries.push_back({std::string(line.name) + ": up to " +
                             format_bytes(highest_of(points, line.key)) + ", off the chart",
                         ""});
    }
  }
  constexpr double kGap = 20;
  double x = kLeft;
  double y = 14;
  for (LegendEntry& entry : entries) {
    const double width = (entry.css_class.empty() ? 0 : 22) + text_width(entry.text);
    if (x > kLeft && x + width > kRight) {
      x = kLeft;
      y += kLegendRow;
    }
    entry.x = x;
    entry.y = y;
    x += width + kGap;
  }
  return entries;
}

void draw_legend(Svg* svg, const std::vector<LegendEntry>& entries) {
  for (const LegendEntry& entry : entries) {
    double at = entry.x;
    if (entry.is_line) {
      svg->line(at, entry.y - 4, at + 16, entry.y - 4, entry.css_class);
    } else if (!entry.css_class.empty()) {
      svg->rect(at, entry.y - 10, 12, 12, entry.css_class);
    }
    if (!entry.css_class.empty()) at += 22;
    svg->text(at, entry.y, entry.text, "start");
  }
}

void draw_hits(Svg* svg, const std::vector<SeriesPoint>& points, const LinearScale& x,
               const LinearScale& y) {
  const std::size_t hits = std::min(points.size(), kMostHits);
  for (std::size_t i = 0; i < hits; ++i) {
    const std::size_t first = i * points.size() / hits;
    const std::size_t end = (i + 1) * points.size() / hits;
    const SeriesPoint& point = points[first];
    const double from = x(time_of(point));
    const double to = end < points.size() ? x(time_of(points[end])) : x.to;
    std::vector<std::string> lines = {"after " + format_duration_ns(point.time)};
    for (const Layer& layer : kLayers) {
      if (!is_seen(points, layer)) continue;
      lines.push_back(std::string(layer.name) + " " + format_bytes(value_of(point, layer.key)));
    }
    for (const Layer& line : kLines) {
      if (point.values.count(line.key) == 0) continue;
      lines.push_back(std::string(line.name) + " " + format_bytes(value_of(point, line.key)));
    }
    svg->hit(from, y.to, std::max(to - from, 2.0), y.from - y.to, lines);
  }
}

void draw_time_axis(Svg* svg, const LinearScale& x, double bottom) {
  for (const Tick& tick : duration_ticks(x.highest, 10)) {
    svg->line(x(tick.place), bottom, x(tick.place), bottom + 4, "axis");
    svg->text(x(tick.place), bottom + 18, tick.label, "middle", "tick");
  }
  svg->line(x.from, bottom, x.to, bottom, "axis");
}

void widen_to(const std::vector<SeriesPoint>& points, Scales* scales) {
  for (const SeriesPoint& point : points) {
    scales->stack_bytes = std::max(scales->stack_bytes, total(point));
    scales->series_ns = std::max({scales->series_ns, time_of(point), 1.0});
  }
  for (const Layer& line : kLines) {
    scales->line_bytes.push_back(static_cast<double>(highest_of(points, line.key)));
  }
}

// The top of the chart: the highest stack, or the highest line that does not dwarf it.
double top_of(const Scales& scales) {
  const double stack = std::max(scales.stack_bytes, 1.0);
  double top = stack;
  for (const double line : scales.line_bytes) {
    if (line <= kTallest * stack) top = std::max(top, line);
  }
  return top * 1.04;
}

}  // namespace

std::string memory_chart(const std::string& id, const Report& report, const DeviceReport& device,
                         const Scales& scales) {
  const std::vector<SeriesPoint> points = points_of(report, device.ordinal);
  if (points.size() < 2) return "";
  std::uint64_t most_held = 0;
  for (const SeriesPoint& point : points) most_held = std::max(most_held, held(point));
  Scales own = scales;
  widen_to(points, &own);
  const double highest = top_of(own);
  const LinearScale x{own.series_ns, kLeft, kRight};
  const std::vector<LegendEntry> legend = legend_of(points, highest);
  const double top = legend.back().y + kLegendRow;
  const double bottom = top + kHeight;
  const LinearScale y{highest, bottom, top};
  Svg svg(id, "Memory over time",
          "Device " + std::to_string(device.ordinal) + ", " + format_count(points.size()) +
              " samples over " + format_duration_ns(points.back().time) + "; cupool held at most " +
              format_bytes(most_held) + " in them.",
          kWidth, bottom + 26);
  for (const Tick& tick : byte_ticks(highest, 5)) {
    svg.line(kLeft, y(tick.place), kRight, y(tick.place), "grid");
    svg.text(kLeft - 8, y(tick.place) + 4, tick.label, "end", "tick");
  }
  std::vector<double> below(points.size(), 0);
  for (const Layer& layer : kLayers) {
    if (!is_seen(points, layer)) continue;
    std::vector<double> above = below;
    for (std::size_t i = 0; i < points.size(); ++i) {
      above[i] += static_cast<double>(value_of(points[i], layer.key));
    }
    svg.path(steps(points, x, y, above, true) + steps_back(points, x, y, below), layer.css_class);
    below = above;
  }
  for (const Layer& line : kLines) {
    if (!is_drawn(points, line, highest)) continue;
    // At exit, for example, the driver cannot be asked: samples without a value are skipped.
    std::vector<SeriesPoint> known;
    std::vector<double> values;
    for (const SeriesPoint& point : points) {
      if (point.values.count(line.key) == 0) continue;
      known.push_back(point);
      values.push_back(static_cast<double>(value_of(point, line.key)));
    }
    svg.path(steps(known, x, y, values, true), line.css_class);
  }
  draw_time_axis(&svg, x, bottom);
  draw_legend(&svg, legend);
  draw_hits(&svg, points, x, y);
  return svg.finish();
}

namespace {

std::string name_of_kind(const std::string& kind) {
  static const std::map<std::string, std::string> names = {{"give_back", "given back"},
                                                           {"oom_rescue", "out of memory"},
                                                           {"wait", "free waited"},
                                                           {"context_lost", "context lost"}};
  const auto found = names.find(kind);
  return found == names.end() ? kind : found->second;
}

using EventsByKind = std::map<std::string, std::vector<const EventReport*>>;

// One row per kind. The limit exceeds the library's number of kinds.
EventsByKind by_kind(const std::vector<EventReport>& events) {
  constexpr std::size_t kMostKinds = 16;
  EventsByKind kinds;
  for (const EventReport& event : events) {
    const std::string name = name_of_kind(event.kind);
    const bool room = kinds.size() < kMostKinds || kinds.count(name) != 0;
    kinds[room ? name : "other kinds"].push_back(&event);
  }
  return kinds;
}

std::uint64_t end_of(const EventReport& event) {
  std::uint64_t end = 0;
  return __builtin_add_overflow(event.time, event.duration, &end) ? UINT64_MAX : end;
}

// One bar per column with events, as long as the longest of them.
void draw_events(Svg* svg, const std::vector<const EventReport*>& events, const LinearScale& x,
                 double y) {
  std::map<std::uint64_t, double> bars;  // column: width
  for (const EventReport* event : events) {
    const double at = x(static_cast<double>(event->time));
    double& width = bars[whole_number(at)];
    width = std::max({width, x(static_cast<double>(end_of(*event))) - at, 2.0});
  }
  for (const auto& [column, width] : bars) {
    svg->rect(static_cast<double>(column) - 1, y, width, 20, "c-event");
  }
}

void widen_to_events(const Report& report, Scales* scales) {
  if (report.events.empty()) return;
  std::uint64_t last = report.ran_ns();
  for (const EventReport& event : report.events) last = std::max(last, end_of(event));
  scales->events_ns = std::max({scales->events_ns, static_cast<double>(last), 1.0});
}

}  // namespace

void widen_over_time(const Report& report, Scales* scales) {
  using Highest = std::array<double, std::size(kLines)>;
  std::map<int, Highest> lines;  // by device
  for (const SeriesPoint& point : report.series) {
    scales->stack_bytes = std::max(scales->stack_bytes, total(point));
    scales->series_ns = std::max({scales->series_ns, time_of(point), 1.0});
    Highest& highest = lines[point.device];
    for (std::size_t i = 0; i < highest.size(); ++i) {
      highest[i] = std::max(highest[i], static_cast<double>(value_of(point, kLines[i].key)));
    }
  }
  for (const auto& [device, highest] : lines) {
    scales->line_bytes.insert(scales->line_bytes.end(), highest.begin(), highest.end());
  }
  widen_to_events(report, scales);
}

std::string events_chart(const std::string& id, const Report& report, const Scales& scales) {
  if (report.events.empty()) return "";
  const EventsByKind kinds = by_kind(report.events);
  Scales own = scales;
  widen_to_events(report, &own);
  constexpr double kRow = 34;
  constexpr double kFrom = 150;
  const LinearScale x{own.events_ns, kFrom, kRight};
  const double bottom = 10 + static_cast<double>(kinds.size()) * kRow;
  std::string description;
  for (const auto& [kind, events] : kinds) {
    std::uint64_t number = 0;
    for (const EventReport* event : events) number += event->count;
    description += (description.empty() ? "" : ", ") + kind + " " + format_count(number);
  }
  Svg svg(id, "Events over time", description, kWidth, bottom + 26);
  double y = 10;
  for (const auto& [kind, events] : kinds) {
    svg.text(kFrom - 12, y + 18, kind, "end");
    svg.line(kFrom, y + 14, kRight, y + 14, "grid");
    draw_events(&svg, events, x, y + 4);
    // One stop of the Tab key per stretch of time with events.
    std::map<std::size_t, std::vector<const EventReport*>> stretches;
    for (const EventReport* event : events) {
      const double share = static_cast<double>(event->time) / x.highest;
      stretches[static_cast<std::size_t>(share * (kMostHits - 1))].push_back(event);
    }
    for (const auto& [stretch, inside] : stretches) {
      const EventReport& event = *inside.front();
      std::vector<std::string> lines = {kind + " after " + format_duration_ns(event.time)};
      if (event.bytes > 0) lines.push_back(format_bytes(event.bytes));
      if (event.duration > 0) lines.push_back("took " + format_duration_ns(event.duration));
      std::uint64_t number = 0;
      for (const EventReport* each : inside) number += each->count;
      if (number > 1) lines.push_back("and " + format_count(number - 1) + " more");
      const double from = x(static_cast<double>(event.time));
      const double to = x(static_cast<double>(inside.back()->time));
      svg.hit(from - 4, y + 2, std::max(to - from, 0.0) + 10, 24, lines);
    }
    y += kRow;
  }
  draw_time_axis(&svg, x, bottom);
  return svg.finish();
}

}  // namespace cupool::cli
