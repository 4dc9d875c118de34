// The parts of the page: prose and tables, with the charts between them.
#include "cli/report_sections.h"

#include <algorithm>

#include "cli/report_charts.h"
#include "cli/report_story.h"
#include "cli/report_svg.h"
#include "util/text.h"

namespace cupool::cli {

using util::format_bytes;
using util::format_count;
using util::format_duration_ns;
using util::format_percent;

namespace {

using Rows = std::vector<std::vector<std::string>>;

std::string paragraph(const std::string& text, const std::string& css_class = "") {
  return "<p" + (css_class.empty() ? "" : " class=\"" + css_class + "\"") + ">" +
         escape_html(text) + "</p>\n";
}

std::string folded(const std::string& summary, const std::string& html) {
  return "<details><summary>" + escape_html(summary) + "</summary>\n" + html + "</details>\n";
}

std::string list(const std::vector<std::string>& sentences) {
  std::string html = "<ul>\n";
  for (const std::string& sentence : sentences) html += "<li>" + escape_html(sentence) + "</li>\n";
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

void add_memory_row(const DeviceReport& device, const char* label, const char* gauge, Rows* rows) {
  const GaugeFigures figures = device.gauge(gauge);
  rows->push_back({label, signed_bytes(figures.current), signed_bytes(figures.peak)});
}

std::string sum_table(const Report& report, const DeviceReport& device) {
  Rows rows = {{"", report.snapshot_number == 0 ? "at exit" : "now", "peak"}};
  add_memory_row(device, "application", "application_bytes", &rows);
  add_memory_row(device, "+ rounding", "rounding_bytes", &rows);
  add_memory_row(device, "+ retired (the GPU may still use it)", "retired_bytes", &rows);
  add_memory_row(device, "+ cached (idle)", "cached_bytes", &rows);
  add_memory_row(device, "= held by cupool", "held_bytes", &rows);
  std::vector<std::size_t> sums = {rows.size() - 1};
  if (device.pool) {
    if (device.driver_slack) {
      rows.push_back({"+ driver slack", signed_bytes(*device.driver_slack), "-"});
    }
    rows.push_back({"= pool reserved", format_bytes(device.pool->reserved_current),
                    format_bytes(device.pool->reserved_high)});
    sums.push_back(rows.size() - 1);
  }
  if (device.gauge("passthrough_bytes").peak > 0) {
    add_memory_row(device, "passed through (cuMemAlloc)", "passthrough_bytes", &rows);
    add_memory_row(device, "application + passed through", "device_bytes", &rows);
  }
  return html_table("The sum that adds up. Peaks are of different moments: they do not.", rows, "",
                    sums);
}

Section memory_of(const Report& report, const std::string& prefix) {
  Section section{prefix + "memory", "Memory", ""};
  for (const DeviceReport& device : report.devices) {
    if (device.ordinal < 0) continue;
    const std::string id = prefix + "memory" + std::to_string(device.ordinal);
    std::string charts = memory_chart(id, report, device);
    const bool over_time = !charts.empty();
    if (!over_time) charts = peaks_chart(id, report, device);
    section.html += "<h3>" + escape_html(title_of(device)) + "</h3>\n" +
                    (over_time ? "<div class=\"wide\">" : "<div class=\"pair\">") + "<div>" +
                    charts + "</div>\n" + sum_table(report, device) + "</div>\n";
    if (!over_time) {
      section.html += paragraph(
          "CUPOOL_STATS_INTERVAL (milliseconds) adds memory over time to the report.", "quiet");
    }
  }
  return section;
}

struct Route {
  const char* name;
  const char* key;
  const char* css_class;
};
constexpr Route kRoutes[] = {
    {"thread's cache", "served_thread_cache_total", "c-cached"},
    {"shared cache", "served_shared_cache_total", "c-application"},
    {"fresh memory", "served_fresh_total", "c-retired"},
    {"passed through", "served_passthrough_total", "c-passed"},
    {"failed", "malloc_failed_total", "c-event"},
};
constexpr Route kWaits[] = {
    {"waited: copies to or from the host", "free_waits_host_copy_total", "c-retired"},
    {"waited: managed memory", "free_waits_managed_total", "c-passed"},
    {"waited: zero-copy memory", "free_waits_zero_copy_total", "c-reserved"},
    {"waited: CUPOOL_MAX_PENDING", "free_waits_pending_limit_total", "c-event"},
    {"waited: free mode sync", "free_waits_sync_total", "c-rounding"},
};

template <std::size_t N>
std::vector<Part> parts_of(const Report& report, const Route (&routes)[N]) {
  std::vector<Part> parts;
  for (const Route& route : routes) {
    const std::uint64_t number = report.counter(route.key);
    if (number > 0) parts.push_back({route.name, number, route.css_class});
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
  Section section{prefix + "calls", "Who served the calls", ""};
  const std::vector<Part> routes = parts_of(report, kRoutes);
  std::vector<Part> frees = {
      {"did not wait for a busy GPU", report.counter("frees_unwaited_busy_total"), "c-cached"}};
  std::uint64_t rest = report.counter("free_calls_total");
  for (const Part& part : parts_of(report, kWaits)) frees.push_back(part);
  for (const Part& part : frees) rest -= std::min(rest, part.number);
  frees.push_back({"nothing to wait for, or left to the driver", rest, "c-idle"});
  section.html += "<div class=\"pair\"><div><h3>Allocations</h3>\n" +
                  parts_chart(prefix + "routes", "What served the allocations", routes) +
                  parts_table("Allocations by what served them", "served by", routes) +
                  "</div>\n<div><h3>Frees</h3>\n" +
                  parts_chart(prefix + "frees", "What frees did", frees) +
                  parts_table("Frees by what they did", "free", frees) + "</div></div>\n";
  return section;
}

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

Section times_section(const Report& report, const std::string& prefix) {
  Section section{prefix + "times", "How long calls took", ""};
  for (const DeviceReport& device : report.devices) {
    const std::vector<NamedTime> times = times_of(device);
    if (times.empty()) continue;
    Rows rows = {{"call", "p50", "p90", "p99", "p99.9", "max", "all calls"}};
    for (const auto& [name, time] : times) {
      rows.push_back({name, format_duration_ns(time.p50), format_duration_ns(time.p90),
                      format_duration_ns(time.p99), format_duration_ns(time.p99_9),
                      format_duration_ns(time.max), format_duration_ns(time.sum)});
    }
    const std::string id = prefix + "latency" + std::to_string(device.ordinal + 1);
    section.html += "<h3>" + escape_html(title_of(device)) + "</h3>\n" + latency_chart(id, times) +
                    html_table("Percentiles: so many calls took no longer than this", rows);
  }
  return section;
}

Section sizes_section(const Report& report, const std::string& prefix) {
  Section section{prefix + "sizes", "What sizes were asked for", ""};
  for (const DeviceReport& device : report.devices) {
    const std::string chart =
        sizes_chart(prefix + "sizes" + std::to_string(device.ordinal + 1), device);
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
  return section;
}

struct ThreadColumn {
  const char* name;
  const char* key;
  std::string (*format)(std::uint64_t);
};
constexpr ThreadColumn kThreadColumns[] = {
    {"allocations", "malloc_calls_total", format_count},
    {"bytes asked for", "malloc_requested_bytes_total", format_bytes},
    {"frees", "free_calls_total", format_count},
    {"frees that waited", "free_waits_total", format_count},
    {"time they waited", "free_wait_ns_total", format_duration_ns},
};

Section threads_section(const Report& report, const std::string& prefix) {
  Section section{prefix + "threads", "Threads", ""};
  if (report.threads.empty()) return section;
  Rows rows = {{"thread"}};
  for (const ThreadColumn& column : kThreadColumns) rows[0].push_back(column.name);
  for (const ThreadReport& thread : report.threads) {
    rows.push_back({thread.name});
    for (const ThreadColumn& column : kThreadColumns) {
      const auto found = thread.counters.find(column.key);
      rows.back().push_back(found == thread.counters.end() ? "-" : column.format(found->second));
    }
  }
  section.html = html_table("What each thread did, by its name and number", rows);
  return section;
}

Section devices_section(const Report& report, const std::string& prefix) {
  Section section{prefix + "devices", "Devices", ""};
  if (report.devices.size() < 2) return section;
  Rows rows = {{"device", "allocations", "from caches", "frees", "did not wait", "waited",
                "peak memory", "leaked"}};
  for (const DeviceReport& device : report.devices) {
    const std::uint64_t mallocs = device.counter("malloc_calls_total");
    rows.push_back({title_of(device), format_count(mallocs),
                    format_percent(device.counter("served_thread_cache_total") +
                                       device.counter("served_shared_cache_total"),
                                   mallocs),
                    format_count(device.counter("free_calls_total")),
                    format_count(device.counter("frees_unwaited_busy_total")),
                    format_count(device.counter("free_waits_total")),
                    format_bytes(peak_memory(device)),
                    signed_bytes(device.gauge("leaked_bytes").current)});
  }
  section.html = html_table("The devices of this process", rows);
  return section;
}

struct Event {
  const char* name;
  const char* number;
  const char* bytes;
};
constexpr Event kEvents[] = {
    {"growth (fresh memory)", "growth_total", "growth_bytes_total"},
    {"idle blocks given back", "returned_blocks_total", "returned_bytes_total"},
    {"trims of the driver's pool", "trims_total", nullptr},
    {"out-of-memory errors averted", "oom_rescues_total", nullptr},
    {"fences recorded", "fences_total", nullptr},
    {"lost with a context", nullptr, "context_lost_bytes_total"},
    {"shared with other processes", "ipc_exports_total", nullptr},
    {"opened of other processes", "ipc_imports_total", nullptr},
    {"own cudaMallocAsync (untouched)", "own_async_malloc_calls_total", nullptr},
    {"managed allocations (untouched)", "managed_malloc_calls_total", nullptr},
    {"host allocations (untouched)", "host_malloc_calls_total", nullptr},
    {"device synchronisations", "synchronize_calls_total", nullptr},
};

Section events_section(const Report& report, const std::string& prefix) {
  Section section{prefix + "events", "Events", ""};
  const std::string chart = events_chart(prefix + "event-chart", report);
  if (!chart.empty()) section.html = "<div class=\"wide\">" + chart + "</div>\n";
  Rows rows = {{"event", "number", "bytes"}};
  for (const Event& event : kEvents) {
    const std::uint64_t number = event.number == nullptr ? 0 : report.counter(event.number);
    const std::uint64_t bytes = event.bytes == nullptr ? 0 : report.counter(event.bytes);
    if (number == 0 && bytes == 0) continue;
    rows.push_back({event.name, event.number == nullptr ? "" : format_count(number),
                    event.bytes == nullptr ? "" : format_bytes(bytes)});
  }
  if (rows.size() > 1) section.html += html_table("Counted over the whole run", rows);
  return section;
}

Section leaks_section(const Report& report, const std::string& prefix) {
  Section section{prefix + "leaks", "Never freed", ""};
  if (report.leaks.empty()) return section;
  const std::string about = report.leaks_sampled_one_in > 1 ? "about " : "";
  Rows rows = {{"call site", "blocks", "bytes", "called by"}};
  for (const LeakReport& leak : report.leaks) {
    rows.push_back({leak.site, about + format_count(leak.blocks), about + format_bytes(leak.bytes),
                    leak.callers});
  }
  if (report.leaks_sampled_one_in > 1) {
    section.html = paragraph("An estimate: one allocation in " +
                                 format_count(report.leaks_sampled_one_in) + " was looked at.",
                             "quiet");
  }
  section.html += html_table(
      "Blocks that were live when the report was taken, by who allocated them", rows, "words");
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
    section.html += html_table("Unlike the defaults", changed, "words");
  } else {
    section.html += paragraph("All settings are at their defaults.");
  }
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
  for (std::size_t i = 0; i < rows.size(); ++i) {
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
  return html + "</table></div>\n";
}

std::string story_section(const std::vector<Report>& reports) {
  const Story story = tell(reports);
  std::string html =
      "<section class=\"story\" aria-labelledby=\"story\">\n<h2 id=\"story\" "
      "class=\"headline\">" +
      escape_html(story.headline) + "</h2>\n";
  if (!story.tiles.empty()) {
    html += "<dl class=\"tiles\">\n";
    for (const Tile& tile : story.tiles) {
      html += "<div class=\"tile\"><dt>" + escape_html(tile.label) +
              "</dt><dd><div class=\"value\">" + escape_html(tile.value) +
              "</div><div class=\"note\">" + escape_html(tile.note) + "</div></dd></div>\n";
    }
    html += "</dl>\n";
  }
  if (!story.sentences.empty()) html += list(story.sentences);
  if (!story.troubles.empty()) {
    html += "<div class=\"trouble\"><h3>Worth a look</h3>" + list(story.troubles) + "</div>\n";
  }
  return html + "</section>\n";
}

Section processes_section(const std::vector<Report>& reports) {
  Section section{"processes", "Processes", ""};
  const std::vector<Comparison> columns = compare_processes(reports);
  const std::vector<std::string> outliers = name_outliers(reports, columns);
  section.html += outliers.empty() ? paragraph("No process is unlike the others.")
                                   : paragraph("Unlike the others:") + list(outliers);
  section.html +=
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"The processes "
      "side by side\"><table>\n<caption>The processes side by side; outliers are marked "
      "with *</caption>\n<tr><th scope=\"col\">process</th>";
  for (const Comparison& column : columns) {
    section.html += "<th scope=\"col\">" + escape_html(column.name) + "</th>";
  }
  section.html += "</tr>\n";
  for (std::size_t i = 0; i < reports.size(); ++i) {
    section.html += "<tr><th scope=\"row\">" + escape_html(name_of(reports[i], true)) + "</th>";
    for (const Comparison& column : columns) {
      section.html += column.is_outlier[i]
                          ? "<td class=\"outlier\">* " + escape_html(column.texts[i]) + "</td>"
                          : "<td>" + escape_html(column.texts[i]) + "</td>";
    }
    section.html += "</tr>\n";
  }
  section.html += "</table></div>\n" + paragraph(kOutlierRule, "quiet");
  return section;
}

std::vector<Section> sections_of(const Report& report, const std::string& prefix) {
  std::vector<Section> sections;
  for (Section& section : std::vector<Section>{
           memory_of(report, prefix), calls_of(report, prefix), times_section(report, prefix),
           sizes_section(report, prefix), threads_section(report, prefix),
           devices_section(report, prefix), events_section(report, prefix),
           leaks_section(report, prefix), settings_section(report, prefix)}) {
    // Of an observed run these would say only that the driver served all.
    const bool of_serving = section.id == prefix + "memory" || section.id == prefix + "calls";
    if (section.html.empty() || (report.observe && of_serving)) continue;
    sections.push_back(std::move(section));
  }
  return sections;
}

}  // namespace cupool::cli
