// SPDX-License-Identifier: Apache-2.0
// Bars: parts of a whole, peaks of memory, sizes of requests, times of calls.
#include "cli/page/charts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "cli/page/story.h"
#include "cli/page/svg.h"
#include "stats/labels.h"
#include "util/text.h"

namespace cupool::cli {

using util::format_bytes;
using util::format_count;
using util::format_duration_ns;
using util::format_percent;

namespace {

constexpr double kWidth = 720;
constexpr double kNarrow = 560;        // of charts side by side
constexpr double kNarrowLabels = 110;  // the width of row labels
constexpr double kMargin = 16;

}  // namespace

std::string parts_chart(const std::string& id, const std::string& title,
                        const std::vector<Part>& parts) {
  std::uint64_t whole = 0;
  std::string description;
  for (const Part& part : parts) whole += part.number;
  if (whole == 0) return "";
  for (const Part& part : parts) {
    description +=
        (description.empty() ? "" : ", ") + part.name + " " + format_percent(part.number, whole);
  }
  constexpr double kBar = 30;
  constexpr double kLegendRow = 22;
  double rows = 1;
  double x = 0;
  for (const Part& part : parts) {
    const double width = text_width(part.name + " " + format_percent(part.number, whole)) + 36;
    if (x + width > kNarrow && x > 0) {
      rows += 1;
      x = 0;
    }
    x += width;
  }
  Svg svg(id, title, description, kNarrow, kBar + 12 + rows * kLegendRow);
  double left = 0;
  for (const Part& part : parts) {
    if (part.number == 0) continue;
    const double width = kNarrow * static_cast<double>(part.number) / static_cast<double>(whole);
    svg.rect(left, 0, std::max(width - 1, 1.0), kBar, part.css_class);
    svg.hit(
        left, 0, width, kBar,
        {part.name + ": " + format_count(part.number) + ", " + format_percent(part.number, whole)});
    left += width;
  }
  x = 0;
  double y = kBar + 24;
  for (const Part& part : parts) {
    const std::string label = part.name + " " + format_percent(part.number, whole);
    const double width = text_width(label) + 36;
    if (x + width > kNarrow && x > 0) {
      x = 0;
      y += kLegendRow;
    }
    svg.rect(x, y - 10, 12, 12, part.css_class);
    svg.text(x + 18, y, label, "start");
    x += width;
  }
  return svg.finish();
}

namespace {

struct MemoryRow {
  stats::Gauge gauge;
  const char* css_class;
};
constexpr MemoryRow kMemoryRows[] = {
    {stats::Gauge::application_bytes, "c-application"},
    {stats::Gauge::rounding_bytes, "c-rounding"},
    {stats::Gauge::retired_bytes, "c-retired"},
    {stats::Gauge::cached_bytes, "c-cached"},
    {stats::Gauge::held_bytes, "c-held"},
    {stats::Gauge::passthrough_bytes, "c-passed"},
};

struct PeakRow {
  std::string name;
  std::uint64_t peak;
  std::uint64_t current;
  std::string css_class;
};

std::vector<PeakRow> peak_rows(const DeviceReport& device) {
  std::vector<PeakRow> rows;
  for (const MemoryRow& row : kMemoryRows) {
    const GaugeFigures gauge = device.gauge(row.gauge);
    const bool rare = row.gauge == stats::Gauge::passthrough_bytes;
    if (rare && gauge.peak <= 0) continue;
    rows.push_back({std::string(short_label_of(row.gauge)), bytes_of(gauge.peak),
                    bytes_of(gauge.current), row.css_class});
  }
  if (device.pool) {
    rows.push_back({std::string(stats::kPoolReservedLabel), device.pool->reserved_high,
                    device.pool->reserved_current, "c-reserved"});
  }
  return rows;
}

}  // namespace

std::string peaks_chart(const std::string& id, const Report& report, const DeviceReport& device,
                        const Scales& scales) {
  const std::vector<PeakRow> rows = peak_rows(device);
  double highest = 0;
  double left = kNarrowLabels;  // of the bars
  std::string description;
  const char* const moment = report.snapshot_number == 0 ? "at exit" : "now";
  for (const PeakRow& row : rows) {
    highest = std::max(highest, static_cast<double>(row.peak));
    left = std::max(left, text_width(row.name) + 18);
    description += (description.empty() ? "" : "; ") + row.name + ": peak " +
                   format_bytes(row.peak) + ", " + moment + " " + format_bytes(row.current);
  }
  if (highest <= 0) return "";
  highest = std::max(highest, scales.peak_bytes);
  constexpr double kRow = 30;
  constexpr double kTop = 28;
  const double bottom = kTop + static_cast<double>(rows.size()) * kRow;
  Svg svg(id, "Highest memory of each kind", description, kNarrow, bottom + 26);
  const LinearScale x{highest, left, kNarrow - 90};
  svg.rect(left, 4, 12, 12, "c-held faint");
  svg.text(left + 18, 14, "peak", "start");
  svg.rect(left + 70, 4, 12, 12, "c-held");
  svg.text(left + 88, 14, moment, "start");
  for (const Tick& tick : byte_ticks(highest, 5)) {
    svg.line(x(tick.place), kTop, x(tick.place), bottom, "grid");
    svg.text(x(tick.place), bottom + 18, tick.label, "middle", "tick");
  }
  double y = kTop + 5;
  for (const PeakRow& row : rows) {
    const auto peak = static_cast<double>(row.peak);
    svg.text(left - 10, y + 15, row.name, "end");
    svg.rect(left, y, x(peak) - left, 20, row.css_class + " faint");
    svg.rect(left, y, x(static_cast<double>(row.current)) - left, 20, row.css_class);
    svg.text(x(peak) + 6, y + 15, format_bytes(row.peak), "start");
    svg.hit(left, y - 4, kNarrow - left, 28,
            {row.name + ": peak " + format_bytes(row.peak),
             std::string(moment) + " " + format_bytes(row.current)});
    y += kRow;
  }
  return svg.finish();
}

namespace {

void widen_to_sizes(const DeviceReport& device, Scales* scales) {
  for (const Bucket& bucket : device.sizes) {
    if (bucket.count == 0) continue;
    scales->smallest_request = std::min(scales->smallest_request, bucket.upper);
    scales->largest_request = std::max(scales->largest_request, bucket.upper);
    scales->most_requests = std::max(scales->most_requests, static_cast<double>(bucket.count));
  }
}

}  // namespace

std::string sizes_chart(const std::string& id, const DeviceReport& device, const Scales& scales) {
  Scales own = scales;
  widen_to_sizes(device, &own);
  std::map<std::uint64_t, std::uint64_t> requests;  // by the bound of their bucket
  std::uint64_t all = 0;
  for (const Bucket& bucket : device.sizes) {
    if (bucket.upper < own.smallest_request || bucket.upper > own.largest_request) continue;
    requests[bucket.upper] += bucket.count;
    all += bucket.count;
  }
  if (all == 0) return "";
  // The library's buckets are powers of two.
  const auto power = [](std::uint64_t upper) {
    return std::log2(static_cast<double>(std::max<std::uint64_t>(upper, 1)));
  };
  const double first = power(own.smallest_request);
  constexpr double kTop = 14;
  constexpr double kBottom = 180;
  constexpr double kLeft = 70;
  const double columns = std::ceil(power(own.largest_request) - first) + 1;
  const double width = std::min(60.0, (kWidth - kLeft - kMargin) / columns);
  Svg svg(id, "Requests by size",
          format_count(all) + " requests, in buckets from up to " +
              format_bytes(requests.begin()->first) + " to up to " +
              format_bytes(requests.rbegin()->first),
          kWidth, kBottom + 40);
  const double highest = own.most_requests * 1.2;
  const LogScale y{0.5, highest, kBottom, kTop};
  for (const Tick& tick : log_count_ticks(highest)) {
    svg.line(kLeft, y(tick.place), kWidth - kMargin, y(tick.place), "grid");
    svg.text(kLeft - 8, y(tick.place) + 4, tick.label, "end", "tick");
  }
  // Leaves out labels that would overlap.
  const double every = std::ceil(58 / width);
  for (double column = 0; column < columns; column += every) {
    svg.text(kLeft + (column + 0.5) * width, kBottom + 18,
             format_bytes(whole_number(std::exp2(first + column))), "middle", "tick");
  }
  for (const auto& [upper, count] : requests) {
    if (count == 0) continue;
    const double left = kLeft + (power(upper) - first) * width;
    const double top = y(static_cast<double>(count));
    svg.rect(left + 1, top, std::max(width - 2, 1.0), kBottom - top, "c-application");
    svg.hit(left, kTop, width, kBottom - kTop,
            {"up to " + format_bytes(upper) + ": " + format_count(count) + " requests, " +
             format_percent(count, all)});
  }
  svg.line(kLeft, kBottom, kWidth - kMargin, kBottom, "axis");
  svg.text((kLeft + kWidth) / 2, kBottom + 36, "size of the request, up to (logarithmic axes)",
           "middle", "tick");
  return svg.finish();
}

namespace {

struct Mark {
  const char* name;
  std::uint64_t TimeFigures::*value;
};
constexpr Mark kMarks[] = {{"p50", &TimeFigures::p50},
                           {"p90", &TimeFigures::p90},
                           {"p99", &TimeFigures::p99},
                           {"p99.9", &TimeFigures::p99_9},
                           {"max", &TimeFigures::max}};
// Priority of their names where space is short.
constexpr std::size_t kMarkRanks[] = {0, 4, 2, 3, 1};

void draw_marks(Svg* svg, const TimeFigures& time, const LogScale& x, double y) {
  const double from = x(static_cast<double>(time.p50));
  svg->line(from, y, x(static_cast<double>(time.max)), y, "whisker");
  for (const Mark& mark : kMarks) {
    svg->circle(x(static_cast<double>(time.*mark.value)), y, 4, "mark");
  }
  std::vector<double> taken;
  for (const std::size_t rank : kMarkRanks) {
    const double place = x(static_cast<double>(time.*kMarks[rank].value));
    const bool crowded = std::any_of(taken.begin(), taken.end(),
                                     [&](double other) { return std::fabs(other - place) < 36; });
    if (crowded) continue;
    taken.push_back(place);
    svg->text(place, y - 9, kMarks[rank].name, "middle", "tick");
  }
}

// Merges buckets into bars of half powers of two, wide enough to see and to point at.
std::vector<Bucket> joined(const std::vector<Bucket>& buckets) {
  std::vector<Bucket> bars;
  for (const Bucket& bucket : buckets) {
    if (bucket.count == 0) continue;
    const double power =
        std::ceil(std::log2(std::max(1.0, static_cast<double>(bucket.upper))) * 2) / 2;
    const auto upper = whole_number(std::round(std::exp2(power)));
    if (bars.empty() || bars.back().upper != upper) bars.push_back({upper, 0});
    bars.back().count += bucket.count;
  }
  return bars;
}

void draw_distribution(Svg* svg, const std::vector<Bucket>& bars, const LogScale& x, double top,
                       double bottom) {
  double highest = 1;
  for (const Bucket& bar : bars) highest = std::max(highest, static_cast<double>(bar.count));
  const LogScale y{0.5, highest * 1.2, bottom, top};
  svg->line(x.from, bottom, x.to, bottom, "axis");
  for (const Bucket& bar : bars) {
    const auto upper = static_cast<double>(bar.upper);
    const double left = x(upper / std::sqrt(2.0));
    const double height = y(static_cast<double>(bar.count));
    svg->rect(left, height, std::max(x(upper) - left - 1, 1.0), bottom - height, "c-application");
    svg->hit(
        left, top, x(upper) - left, bottom - top,
        {"up to " + format_duration_ns(bar.upper) + ": " + format_count(bar.count) + " calls"});
  }
}

void widen_to_times(const std::vector<NamedTime>& times, Scales* scales) {
  const auto least = [scales](double value) {
    scales->fastest_ns = std::min(scales->fastest_ns, std::max(value, 0.5));
  };
  for (const NamedTime& row : times) {
    least(static_cast<double>(std::max<std::uint64_t>(row.time.p50, 1)));
    for (const Bucket& bucket : row.time.buckets) {
      if (bucket.count == 0) continue;
      least(static_cast<double>(std::max<std::uint64_t>(bucket.upper, 1)) / 2);
    }
    scales->slowest_ns = std::max(scales->slowest_ns, static_cast<double>(row.time.max));
  }
}

}  // namespace

std::vector<NamedTime> times_of(const DeviceReport& device) {
  std::vector<NamedTime> times;
  for (const auto& [name, time] :
       {std::pair<const char*, const TimeFigures&>{"malloc", device.malloc_time},
        {"free", device.free_time},
        {"synchronise", device.synchronize_time}}) {
    if (time.count > 0) times.push_back({name, time});
  }
  return times;
}

Scales scales_of(const std::vector<Report>& reports) {
  Scales scales;
  for (const Report& report : reports) {
    widen_over_time(report, &scales);
    for (const DeviceReport& device : report.devices) {
      widen_to_times(times_of(device), &scales);
      widen_to_sizes(device, &scales);
      for (const PeakRow& row : peak_rows(device)) {
        scales.peak_bytes = std::max(scales.peak_bytes, static_cast<double>(row.peak));
      }
    }
  }
  return scales;
}

std::string latency_chart(const std::string& id, const std::vector<NamedTime>& times,
                          const Scales& scales) {
  constexpr double kRow = 52;
  constexpr double kDistribution = 80;
  Scales own = scales;
  widen_to_times(times, &own);
  double height = 8;
  std::string description;
  for (const NamedTime& row : times) {
    height += kRow + (row.time.buckets.empty() ? 0 : kDistribution);
    description += (description.empty() ? "" : "; ") + row.name + ": median " +
                   format_duration_ns(row.time.p50) + ", p99 " + format_duration_ns(row.time.p99) +
                   ", longest " + format_duration_ns(row.time.max);
  }
  if (times.empty()) return "";
  const double lowest = std::pow(10, std::floor(std::log10(own.fastest_ns)));
  const double highest = std::max(lowest * 10, std::pow(10, std::ceil(std::log10(own.slowest_ns))));
  Svg svg(id, "Time of a call", description, kWidth, height + 44);
  const LogScale x{lowest, highest, 100, kWidth - 24};
  for (const Tick& tick : log_duration_ticks(lowest, highest)) {
    svg.line(x(tick.place), 0, x(tick.place), height, "grid");
    svg.text(x(tick.place), height + 16, tick.label, "middle", "tick");
  }
  double y = 8;
  for (const NamedTime& row : times) {
    svg.text(90, y + 30, row.name, "end");
    draw_marks(&svg, row.time, x, y + 26);
    std::vector<std::string> lines;
    for (const Mark& mark : kMarks) {
      lines.push_back(row.name + " " + mark.name + ": " + format_duration_ns(row.time.*mark.value));
    }
    svg.hit(x(static_cast<double>(row.time.p50)) - 8, y + 14,
            x(static_cast<double>(row.time.max)) - x(static_cast<double>(row.time.p50)) + 16, 24,
            lines);
    y += kRow;
    if (row.time.buckets.empty()) continue;
    draw_distribution(&svg, joined(row.time.buckets), x, y, y + kDistribution - 12);
    y += kDistribution;
  }
  svg.text((100 + kWidth) / 2, height + 36,
           "time of a call (logarithmic); bars, if any: number of calls (logarithmic)", "middle",
           "tick");
  return svg.finish();
}

}  // namespace cupool::cli
