// SPDX-License-Identifier: Apache-2.0
// The parts of the page: prose and tables, with the charts between them.
#include "cli/page/sections.h"

#include <algorithm>
#include <optional>

#include "cli/page/charts.h"
#include "cli/page/flame.h"
#include "cli/page/story.h"
#include "cli/page/svg.h"
#include "stats/labels.h"
#include "util/text.h"

namespace cupool::cli {

using stats::Counter;
using stats::Gauge;
using util::format_bytes;
using util::format_count;
using util::format_duration_ns;
using util::format_percent;

namespace {
using Rows = std::vector<std::vector<std::string>>;

constexpr std::size_t kMostRows = 4000;  // of a table: browsers crawl beyond

std::string paragraph(const std::string& text, const std::string& css_class = "") {
  return "<p" + (css_class.empty() ? "" : " class=\"" + css_class + "\"") + ">" + prose_html(text) +
         "</p>\n";
}

std::string folded(const std::string& summary, const std::string& html) {
  return "<details><summary>" + escape_html(summary) + "</summary>\n" + html + "</details>\n";
}

std::string list(const std::vector<std::string>& sentences) {
  std::string html = "<ul>\n";
  for (const std::string& sentence : sentences) html += "<li>" + prose_html(sentence) + "</li>\n";
  return html + "</ul>\n";
}

std::string signed_bytes(std::int64_t value) {
  return value < 0 ? "-" + format_bytes(std::uint64_t{0} - static_cast<std::uint64_t>(value))
                   : format_bytes(static_cast<std::uint64_t>(value));
}

std::string title_of(const DeviceReport& device) {
  if (device.ordinal < 0) return "Without a current context";
  std::string title = "Device " + std::to_string(device.ordinal);
  if (!device.name.empty()) title += ": " + device.name;
  if (device.total_memory > 0) title += ", " + format_bytes(device.total_memory);
  return title;
}

// `sign`: the row's part in the sum, "+ ", "- ", "= " or "".
void add_memory_row(const DeviceReport& device, const char* sign, Gauge gauge, Rows* rows) {
  const GaugeFigures figures = device.gauge(gauge);
  rows->push_back({sign + std::string(label_of(gauge)), signed_bytes(figures.current),
                   signed_bytes(figures.peak)});
}

std::string sum_table(const Report& report, const DeviceReport& device) {
  Rows rows = {{"", report.snapshot_number == 0 ? "at exit" : "now", "peak"}};
  add_memory_row(device, "", Gauge::application_bytes, &rows);
  add_memory_row(device, "+ ", Gauge::rounding_bytes, &rows);
  add_memory_row(device, "+ ", Gauge::retired_bytes, &rows);
  add_memory_row(device, "+ ", Gauge::cached_bytes, &rows);
  add_memory_row(device, "= ", Gauge::held_bytes, &rows);
  std::vector<std::size_t> sums = {rows.size() - 1};
  if (device.pool) {
    if (device.gauge(Gauge::plain_bytes).peak > 0) {
      add_memory_row(device, "- ", Gauge::plain_bytes, &rows);
    }
    if (device.driver_slack) {
      rows.push_back(
          {"+ " + std::string(stats::kDriverSlackLabel), signed_bytes(*device.driver_slack), "-"});
    }
    rows.push_back({"= " + std::string(stats::kPoolReservedLabel),
                    format_bytes(device.pool->reserved_current),
                    format_bytes(device.pool->reserved_high)});
    sums.push_back(rows.size() - 1);
  }
  if (device.gauge(Gauge::passthrough_bytes).peak > 0) {
    add_memory_row(device, "", Gauge::passthrough_bytes, &rows);
    add_memory_row(device, "", Gauge::device_bytes, &rows);
  }
  return html_table("Current values add up. Peaks do not: they occur at different times.", rows, "",
                    sums);
}

using Devices = std::vector<const DeviceReport*>;

// The `most` devices with the most allocations, in the report's order.
Devices busiest(const Report& report, std::size_t most) {
  Devices devices;
  for (const DeviceReport& device : report.devices) devices.push_back(&device);
  if (devices.size() <= most) return devices;
  std::stable_sort(devices.begin(), devices.end(),
                   [](const DeviceReport* a, const DeviceReport* b) {
                     return a->counter("malloc_calls_total") > b->counter("malloc_calls_total");
                   });
  devices.resize(most);
  std::sort(devices.begin(), devices.end());  // pointers into one vector
  return devices;
}

std::string left_out(const Report& report, const Devices& shown) {
  const std::size_t rest = report.devices.size() - shown.size();
  if (rest == 0) return "";
  return paragraph(format_count(rest) +
                       " devices with fewer allocations are not shown here; see the " +
                       "table of devices and the JSON report.",
                   "quiet");
}

Section memory_of(const Report& report, const Devices& devices, const std::string& prefix,
                  const Scales& scales) {
  Section section{prefix + "memory", "Memory", ""};
  for (const DeviceReport* shown : devices) {
    const DeviceReport& device = *shown;
    if (device.ordinal < 0) continue;
    const std::string id = prefix + "memory" + std::to_string(device.ordinal);
    std::string charts = memory_chart(id, report, device, scales);
    const bool over_time = !charts.empty();
    if (!over_time) charts = peaks_chart(id, report, device, scales);
    section.html += "<h3>" + escape_html(title_of(device)) + "</h3>\n" +
                    (over_time ? "<div class=\"wide\">" : "<div class=\"pair\">") + "<div>" +
                    charts + "</div>\n" + sum_table(report, device) + "</div>\n";
    if (!over_time) {
      section.html += paragraph(
          "Set CUPOOL_STATS_INTERVAL (milliseconds) for a chart of memory over time.", "quiet");
    }
  }
  section.html += left_out(report, devices);
  return section;
}

struct Route {
  Counter counter;
  const char* css_class;
};
constexpr Route kRoutes[] = {
    {Counter::served_thread_cache_total, "c-cached"},
    {Counter::served_shared_cache_total, "c-application"},
    {Counter::served_fresh_total, "c-retired"},
    {Counter::served_passthrough_total, "c-passed"},
    {Counter::malloc_failed_total, "c-event"},
};
constexpr Route kWaits[] = {
    {Counter::free_waits_host_copy_total, "c-retired"},
    {Counter::free_waits_managed_total, "c-passed"},
    {Counter::free_waits_zero_copy_total, "c-reserved"},
    {Counter::free_waits_pending_limit_total, "c-event"},
    {Counter::free_waits_sync_total, "c-rounding"},
    {Counter::free_waits_order_total, "c-cached"},
};

// `verb` precedes the labels.
template <std::size_t N>
std::vector<Part> parts_of(const Report& report, const char* verb, const Route (&routes)[N]) {
  std::vector<Part> parts;
  for (const Route& route : routes) {
    const std::uint64_t number = report.counter(route.counter);
    if (number == 0) continue;
    parts.push_back({verb + std::string(short_label_of(route.counter)), number, route.css_class});
  }
  return parts;
}

std::string parts_table(const std::string& caption, const std::string& first,
                        const std::vector<Part>& parts) {
  std::uint64_t whole = 0;
  for (const Part& part : parts) whole += part.number;
  Rows rows = {{first, "number", "share"}};
  for (const Part& part : parts) {
    rows.push_back({part.name, format_count(part.number), format_percent(part.number, whole)});
  }
  rows.push_back({"all", format_count(whole), format_percent(whole, whole)});
  return folded("The figures", html_table(caption, rows, "", {rows.size() - 1}));
}

Section calls_of(const Report& report, const std::string& prefix) {
  Section section{prefix + "calls", "Calls", ""};
  const std::vector<Part> routes = parts_of(report, "", kRoutes);
  std::vector<Part> frees = {{std::string(label_of(Counter::frees_unwaited_busy_total)),
                              report.counter(Counter::frees_unwaited_busy_total), "c-cached"}};
  std::uint64_t rest = report.counter(Counter::free_calls_total);
  for (const Part& part : parts_of(report, "waited ", kWaits)) frees.push_back(part);
  const std::uint64_t others = report.counter(Counter::free_passthrough_total) +
                               report.counter(Counter::free_foreign_total) +
                               report.counter(Counter::free_null_total) +
                               report.counter(Counter::free_rejected_total);
  if (others > 0) frees.push_back({"left to the driver, of null, or refused", others, "c-held"});
  for (const Part& part : frees) rest -= std::min(rest, part.number);
  frees.push_back({"without a wait, no stall seen", rest, "c-idle"});
  section.html += "<div class=\"pair\"><div><h3>Allocations</h3>\n" +
                  parts_chart(prefix + "routes", "Allocations by source", routes) +
                  parts_table("Allocations by source", "allocation", routes) +
                  "</div>\n<div><h3>Frees</h3>\n" +
                  parts_chart(prefix + "frees", "Frees by outcome", frees) +
                  parts_table("Frees by outcome", "free", frees) + "</div></div>\n";
  return section;
}

Section times_section(const Report& report, const Devices& devices, const std::string& prefix,
                      const Scales& scales) {
  Section section{prefix + "times", "Time of calls", ""};
  for (const DeviceReport* shown : devices) {
    const DeviceReport& device = *shown;
    const std::vector<NamedTime> times = times_of(device);
    if (times.empty()) continue;
    Rows rows = {{"call", "p50", "p90", "p99", "p99.9", "max", "all calls"}};
    for (const auto& [name, time] : times) {
      rows.push_back({name, format_duration_ns(time.p50), format_duration_ns(time.p90),
                      format_duration_ns(time.p99), format_duration_ns(time.p99_9),
                      format_duration_ns(time.max), format_duration_ns(time.sum)});
    }
    const std::string id = prefix + "latency" + std::to_string(device.ordinal + 1);
    section.html += "<h3>" + escape_html(title_of(device)) + "</h3>\n" +
                    latency_chart(id, times, scales) +
                    html_table("Percentiles: this share of calls took no longer", rows);
  }
  if (!section.html.empty()) section.html += left_out(report, devices);
  return section;
}

Section sizes_section(const Report& report, const Devices& devices, const std::string& prefix,
                      const Scales& scales) {
  Section section{prefix + "sizes", "Requested sizes", ""};
  for (const DeviceReport* shown : devices) {
    const DeviceReport& device = *shown;
    const std::string chart =
        sizes_chart(prefix + "sizes" + std::to_string(device.ordinal + 1), device, scales);
    if (chart.empty()) continue;
    Rows rows = {{"up to", "requests"}};
    for (const Bucket& bucket : device.sizes) {
      if (bucket.count > 0) {
        rows.push_back({format_bytes(bucket.upper), format_count(bucket.count)});
      }
    }
    section.html += "<h3>" + escape_html(title_of(device)) + "</h3>\n" + chart +
                    folded("The figures", html_table("Requests by size", rows));
  }
  if (!section.html.empty()) section.html += left_out(report, devices);
  return section;
}

struct ThreadColumn {
  Counter counter;
  std::string (*format)(std::uint64_t);
};
constexpr ThreadColumn kThreadColumns[] = {
    {Counter::malloc_calls_total, format_count},
    {Counter::malloc_requested_bytes_total, format_bytes},
    {Counter::free_calls_total, format_count},
    {Counter::free_waits_total, format_count},
    {Counter::free_wait_ns_total, format_duration_ns},
};

Section threads_section(const Report& report, const std::string& prefix) {
  Section section{prefix + "threads", "Threads", ""};
  if (report.threads.empty()) return section;
  Rows rows = {{"thread"}};
  for (const ThreadColumn& column : kThreadColumns) {
    rows[0].emplace_back(label_of(column.counter));
  }
  for (const ThreadReport& thread : report.threads) {
    rows.push_back({thread.name});
    for (const ThreadColumn& column : kThreadColumns) {
      const auto found = thread.counters.find(key_of(column.counter));
      rows.back().push_back(found == thread.counters.end() ? "-" : column.format(found->second));
    }
  }
  section.html = html_table("Calls of each thread, by name and number", rows);
  return section;
}

Section devices_section(const Report& report, const std::string& prefix) {
  Section section{prefix + "devices", "Devices", ""};
  if (report.devices.size() < 2) return section;
  Rows rows = {{"device", std::string(label_of(Counter::malloc_calls_total)), "from caches",
                std::string(label_of(Counter::free_calls_total)),
                std::string(label_of(Counter::frees_unwaited_busy_total)),
                std::string(label_of(Counter::free_waits_total)), "peak memory",
                std::string(label_of(Gauge::leaked_bytes))}};
  for (const DeviceReport& device : report.devices) {
    const std::uint64_t mallocs = device.counter(Counter::malloc_calls_total);
    rows.push_back({title_of(device), format_count(mallocs),
                    format_percent(device.counter(Counter::served_thread_cache_total) +
                                       device.counter(Counter::served_shared_cache_total),
                                   mallocs),
                    format_count(device.counter(Counter::free_calls_total)),
                    format_count(device.counter(Counter::frees_unwaited_busy_total)),
                    format_count(device.counter(Counter::free_waits_total)),
                    format_bytes(peak_memory(device)),
                    signed_bytes(device.gauge(Gauge::leaked_bytes).current)});
  }
  section.html = html_table("The devices of this process", rows);
  return section;
}

struct Event {
  Counter named_by;
  std::optional<Counter> number;
  std::optional<Counter> bytes;
};
constexpr Event counted(Counter number, std::optional<Counter> bytes = std::nullopt) {
  return {number, number, bytes};
}
constexpr Event kEvents[] = {
    counted(Counter::growth_total, Counter::growth_bytes_total),
    counted(Counter::returned_blocks_total, Counter::returned_bytes_total),
    counted(Counter::trims_total),
    counted(Counter::oom_rescues_total),
    counted(Counter::neighbours_asked_total),
    {Counter::given_to_neighbours_bytes_total, std::nullopt,
     Counter::given_to_neighbours_bytes_total},
    counted(Counter::fences_total),
    {Counter::context_lost_bytes_total, std::nullopt, Counter::context_lost_bytes_total},
    counted(Counter::ipc_exports_total),
    counted(Counter::ipc_imports_total),
    counted(Counter::own_async_malloc_calls_total),
    counted(Counter::own_async_served_total),
    counted(Counter::own_async_free_calls_total),
    counted(Counter::managed_malloc_calls_total),
    counted(Counter::array_calls_total),
    counted(Counter::host_malloc_calls_total),
    counted(Counter::host_served_total),
    counted(Counter::host_free_waits_total),
    counted(Counter::synchronize_calls_total),
};

Section events_section(const Report& report, const std::string& prefix, const Scales& scales) {
  Section section{prefix + "events", "Events", ""};
  const std::string chart = events_chart(prefix + "event-chart", report, scales);
  if (!chart.empty()) section.html = "<div class=\"wide\">" + chart + "</div>\n";
  Rows rows = {{"event", "number", "bytes"}};
  for (const Event& event : kEvents) {
    const std::uint64_t number = event.number ? report.counter(*event.number) : 0;
    const std::uint64_t bytes = event.bytes ? report.counter(*event.bytes) : 0;
    if (number == 0 && bytes == 0) continue;
    rows.push_back({std::string(label_of(event.named_by)), event.number ? format_count(number) : "",
                    event.bytes ? format_bytes(bytes) : ""});
  }
  if (rows.size() > 1) section.html += html_table("Counted over the whole run", rows);
  return section;
}

Section leaks_section(const Report& report, const std::string& prefix) {
  Section section{prefix + "leaks", "Never freed", ""};
  if (report.leaks.empty()) return section;
  const std::string about = report.leaks_sampled_one_in > 1 ? "about " : "";
  Rows rows = {{"call site", "memory", "blocks", "bytes", "called by"}};
  for (const LeakReport& leak : report.leaks) {
    rows.push_back({leak.site, leak.kind, about + format_count(leak.blocks),
                    about + format_bytes(leak.bytes), leak.callers});
  }
  if (report.leaks_sampled_one_in > 1) {
    section.html = paragraph("An estimate: one allocation in " +
                                 format_count(report.leaks_sampled_one_in) + " was sampled.",
                             "quiet");
  }
  section.html +=
      html_table("Blocks that were live when the report was taken, by call site", rows, "words");
  return section;
}

Section settings_section(const Report& report, const std::string& prefix) {
  Section section{prefix + "settings", "Settings", ""};
  if (!report.suggested.empty()) {
    std::string lines;
    for (const auto& [name, value] : report.suggested)
      lines.append(name).append("=").append(value).append(" ");
    lines.pop_back();
    section.html += paragraph("From this run's peak, for the next one:") + "<pre tabindex=\"0\">" +
                    escape_html(lines) + "</pre>\n";
  }
  Rows changed = {{"setting", "value", "from"}};
  Rows untouched = {{"setting", "value"}};
  for (const SettingReport& setting : report.settings) {
    if (setting.is_default) {
      untouched.push_back({setting.name, setting.value});
    } else {
      changed.push_back({setting.name, setting.value, setting.origin});
    }
  }
  if (changed.size() > 1) {
    section.html += html_table("Settings that differ from their defaults", changed, "words");
  } else {
    section.html += paragraph("All settings are at their defaults.");
  }
  if (report.modes_differ()) section.html += paragraph(report.mode_reason->text + ".");
  if (untouched.size() > 1) {
    section.html += folded(
        std::to_string(untouched.size() - 1) +
            (untouched.size() == 2 ? " setting at its default" : " settings at their defaults"),
        html_table("At their defaults", untouched, "words"));
  }
  return section;
}

}  // namespace

std::string html_table(const std::string& caption,
                       const std::vector<std::vector<std::string>>& rows,
                       const std::string& css_class, const std::vector<std::size_t>& sums) {
  std::string html = "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"" +
                     escape_html(caption) + "\"><table" +
                     (css_class.empty() ? "" : " class=\"" + css_class + "\"") + ">\n<caption>" +
                     escape_html(caption) + "</caption>\n";
  const std::size_t shown = std::min(rows.size(), kMostRows);
  for (std::size_t i = 0; i < shown; ++i) {
    const bool sum = std::find(sums.begin(), sums.end(), i) != sums.end();
    html += sum ? "<tr class=\"sum\">" : "<tr>";
    for (std::size_t j = 0; j < rows[i].size(); ++j) {
      const std::string cell = escape_html(rows[i][j]);
      if (i == 0 && cell.empty()) {
        html += "<td></td>";
      } else if (i == 0) {
        html += "<th scope=\"col\">" + cell + "</th>";
      } else if (j == 0) {
        html += "<th scope=\"row\">" + cell + "</th>";
      } else {
        html += "<td>" + cell + "</td>";
      }
    }
    html += "</tr>\n";
  }
  html += "</table></div>\n";
  if (shown == rows.size()) return html;
  return html + paragraph(format_count(rows.size() - shown) + " more rows are in the JSON report.",
                          "quiet");
}

std::string story_section(const std::vector<Report>& reports) {
  const Story story = tell(reports);
  std::string html =
      "<section class=\"story\" aria-labelledby=\"story\">\n<h2 id=\"story\" "
      "class=\"headline\">" +
      prose_html(story.headline) + "</h2>\n";
  if (!story.verdict.time.empty()) {
    html += list({"Memory: " + story.verdict.memory + ".", "Next: " + story.verdict.next + "."});
  }
  if (!story.tiles.empty()) {
    html += "<dl class=\"tiles\">\n";
    for (const Tile& tile : story.tiles) {
      html += "<div class=\"tile\"><dt>" + escape_html(tile.label) +
              "</dt><dd><div class=\"value\">" + escape_html(tile.value) +
              "</div><div class=\"note\">" + prose_html(tile.note) + "</div></dd></div>\n";
    }
    html += "</dl>\n";
  }
  if (!story.sentences.empty()) html += list(story.sentences);
  if (!story.troubles.empty()) {
    html += "<div class=\"trouble\"><h3>Worth a look</h3>" + list(story.troubles) + "</div>\n";
  }
  return html + "</section>\n";
}

std::vector<Section> sections_of(const Report& report, const std::string& prefix,
                                 std::size_t most_devices, const Scales& scales) {
  std::vector<Section> sections;
  const Devices devices = busiest(report, most_devices);
  for (Section& section : std::vector<Section>{
           memory_of(report, devices, prefix, scales), calls_of(report, prefix),
           times_section(report, devices, prefix, scales),
           sizes_section(report, devices, prefix, scales), threads_section(report, prefix),
           devices_section(report, prefix), events_section(report, prefix, scales),
           Section{prefix + "sites", "Where memory comes from", sites_html(report.sites, prefix)},
           leaks_section(report, prefix), settings_section(report, prefix)}) {
    // In an observed run the driver served everything: nothing to show.
    const bool of_serving = section.id == prefix + "memory" || section.id == prefix + "calls";
    if (section.html.empty() || (report.observe && of_serving)) continue;
    sections.push_back(std::move(section));
  }
  return sections;
}

}  // namespace cupool::cli
