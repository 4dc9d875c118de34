// Pictures along time: memory of a device, and events.
#include <algorithm>
#include <cmath>
#include <map>

#include "cli/report_charts.h"
#include "cli/report_svg.h"
#include "util/text.h"

namespace cupool::cli {

using util::format_bytes;
using util::format_count;
using util::format_duration_ns;

namespace {

constexpr double kWidth = 1080;
constexpr double kLeft = 84;
constexpr double kRight = 1060;
constexpr double kTop = 34;
constexpr double kBottom = 280;
constexpr std::size_t kMostPoints = 600;  // more than the picture has columns
constexpr std::size_t kMostHits = 32;     // places that the keyboard stops at

struct Layer {
  const char* name;
  const char* key;
  const char* css_class;
};
// From the bottom up: what the program has, what pooling adds.
constexpr Layer kLayers[] = {{"application", "application_bytes", "c-application"},
                             {"rounding", "rounding_bytes", "c-rounding"},
                             {"retired", "retired_bytes", "c-retired"},
                             {"cached", "cached_bytes", "c-cached"}};
constexpr Layer kLines[] = {{"pool reserved", "pool_reserved_bytes", "l-reserved"},
                            {"used on the device", "device_used_bytes", "l-device"}};

std::uint64_t value_of(const SeriesPoint& point, const char* key) {
  const auto found = point.values.find(key);
  return found == point.values.end() ? 0 : found->second;
}

bool has_value(const std::vector<SeriesPoint>& points, const char* key) {
  return std::any_of(points.begin(), points.end(),
                     [&](const SeriesPoint& point) { return point.values.count(key) != 0; });
}

std::uint64_t held(const SeriesPoint& point) {
  std::uint64_t sum = 0;
  for (const Layer& layer : kLayers) sum += value_of(point, layer.key);
  return sum;
}

// Of each stretch the point with the most memory, so that no peak is lost.
std::vector<SeriesPoint> thinned(const std::vector<SeriesPoint>& points) {
  if (points.size() <= kMostPoints) return points;
  std::vector<SeriesPoint> kept;
  for (std::size_t i = 0; i < kMostPoints; ++i) {
    const std::size_t first = i * points.size() / kMostPoints;
    const std::size_t end = (i + 1) * points.size() / kMostPoints;
    const auto at = points.begin();
    kept.push_back(*std::max_element(
        at + static_cast<std::ptrdiff_t>(first), at + static_cast<std::ptrdiff_t>(end),
        [](const SeriesPoint& a, const SeriesPoint& b) { return held(a) < held(b); }));
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

// The same backwards, for the lower edge of an area.
std::string steps_back(const std::vector<SeriesPoint>& points, const LinearScale& x,
                       const LinearScale& y, const std::vector<double>& values) {
  std::string commands =
      "L" + coordinate(x(time_of(points.back()))) + " " + coordinate(y(values.back()));
  for (std::size_t i = points.size() - 1; i > 0; --i) {
    commands += "V" + coordinate(y(values[i - 1])) + "H" + coordinate(x(time_of(points[i - 1])));
  }
  return commands + "Z";
}

// A line is drawn only where it leaves what cupool holds to be seen: other processes may use most
// of a device.
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

void draw_legend(Svg* svg, const std::vector<SeriesPoint>& points, double highest) {
  double at = kLeft;
  for (const Layer& layer : kLayers) {
    svg->rect(at, 4, 12, 12, layer.css_class);
    svg->text(at + 18, 14, layer.name, "start");
    at += 110;
  }
  for (const Layer& line : kLines) {
    if (!has_value(points, line.key)) continue;
    const bool drawn = is_drawn(points, line, highest);
    if (drawn) svg->line(at, 10, at + 16, 10, line.css_class);
    svg->text(drawn ? at + 22 : at, 14,
              drawn ? line.name
                    : std::string(line.name) + ": up to " +
                          format_bytes(highest_of(points, line.key)) + ", beyond this picture",
              "start");
    at += 140;
  }
}

void draw_hits(Svg* svg, const std::vector<SeriesPoint>& points, const LinearScale& x) {
  const std::size_t hits = std::min(points.size(), kMostHits);
  for (std::size_t i = 0; i < hits; ++i) {
    const std::size_t first = i * points.size() / hits;
    const std::size_t end = (i + 1) * points.size() / hits;
    const SeriesPoint& point = points[first];
    const double from = x(time_of(point));
    const double to = end < points.size() ? x(time_of(points[end])) : x.to;
    std::vector<std::string> lines = {"after " + format_duration_ns(point.time)};
    for (const Layer& layer : kLayers) {
      lines.push_back(std::string(layer.name) + " " + format_bytes(value_of(point, layer.key)));
    }
    for (const Layer& line : kLines) {
      if (point.values.count(line.key) == 0) continue;
      lines.push_back(std::string(line.name) + " " + format_bytes(value_of(point, line.key)));
    }
    svg->hit(from, kTop, std::max(to - from, 2.0), kBottom - kTop, lines);
  }
}

void draw_time_axis(Svg* svg, const LinearScale& x, double bottom) {
  for (const Tick& tick : duration_ticks(x.highest, 10)) {
    svg->line(x(tick.place), bottom, x(tick.place), bottom + 4, "axis");
    svg->text(x(tick.place), bottom + 18, tick.label, "middle", "tick");
  }
  svg->line(x.from, bottom, x.to, bottom, "axis");
}

}  // namespace

std::string memory_chart(const std::string& id, const Report& report, const DeviceReport& device) {
  const std::vector<SeriesPoint> points = points_of(report, device.ordinal);
  if (points.size() < 2) return "";
  double highest = 1;
  std::uint64_t most_held = 0;
  for (const SeriesPoint& point : points) most_held = std::max(most_held, held(point));
  highest = std::max(highest, static_cast<double>(most_held));
  for (const Layer& line : kLines) {
    const auto most = static_cast<double>(highest_of(points, line.key));
    if (most <= kTallest * highest) highest = std::max(highest, most);
  }
  highest *= 1.04;
  const LinearScale x{std::max(time_of(points.back()), 1.0), kLeft, kRight};
  const LinearScale y{highest, kBottom, kTop};
  Svg svg(id, "Memory over time",
          "Device " + std::to_string(device.ordinal) + ", " + format_count(points.size()) +
              " samples over " + format_duration_ns(points.back().time) + "; cupool held at most " +
              format_bytes(most_held) + " in them.",
          kWidth, kBottom + 26);
  for (const Tick& tick : byte_ticks(highest, 5)) {
    svg.line(kLeft, y(tick.place), kRight, y(tick.place), "grid");
    svg.text(kLeft - 8, y(tick.place) + 4, tick.label, "end", "tick");
  }
  std::vector<double> below(points.size(), 0);
  for (const Layer& layer : kLayers) {
    std::vector<double> above = below;
    for (std::size_t i = 0; i < points.size(); ++i) {
      above[i] += static_cast<double>(value_of(points[i], layer.key));
    }
    svg.path(steps(points, x, y, above, true) + steps_back(points, x, y, below), layer.css_class);
    below = above;
  }
  for (const Layer& line : kLines) {
    if (!is_drawn(points, line, highest)) continue;
    // Where the driver could not be asked, as at exit, there is nothing to draw.
    std::vector<SeriesPoint> known;
    std::vector<double> values;
    for (const SeriesPoint& point : points) {
      if (point.values.count(line.key) == 0) continue;
      known.push_back(point);
      values.push_back(static_cast<double>(value_of(point, line.key)));
    }
    svg.path(steps(known, x, y, values, true), line.css_class);
  }
  draw_time_axis(&svg, x, kBottom);
  draw_legend(&svg, points, highest);
  draw_hits(&svg, points, x);
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

}  // namespace

std::string events_chart(const std::string& id, const Report& report) {
  if (report.events.empty()) return "";
  std::map<std::string, std::vector<const EventReport*>> kinds;
  std::uint64_t last = report.ran_ns();
  for (const EventReport& event : report.events) {
    kinds[name_of_kind(event.kind)].push_back(&event);
    last = std::max(last, event.time + event.duration);
  }
  constexpr double kRow = 34;
  constexpr double kFrom = 150;
  const LinearScale x{std::max(static_cast<double>(last), 1.0), kFrom, kRight};
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
    for (const EventReport* event : events) {
      const double at = x(static_cast<double>(event->time));
      const double width = x(static_cast<double>(event->time + event->duration)) - at;
      svg.rect(at - 1, y + 4, std::max(width, 2.0), 20, "c-event");
    }
    // One place to stop at for each stretch of time with events in it.
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
