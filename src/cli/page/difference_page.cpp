// SPDX-License-Identifier: Apache-2.0
// The page of a difference: what changed as tables, then the charts of both runs, one below the
// other on one scale.
#include <algorithm>

#include "cli/page/difference.h"
#include "cli/page/html.h"
#include "cli/page/sections.h"
#include "cli/page/story.h"
#include "cli/page/svg.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

// The process with the most memory stands for its run in the charts.
const Report& largest_of(const std::vector<Report>& reports) {
  const auto size_of = [](const Report& report) {
    std::uint64_t most = 0;
    for (const DeviceReport& device : report.devices) most = std::max(most, peak_memory(device));
    return most;
  };
  return *std::max_element(reports.begin(), reports.end(), [&](const Report& a, const Report& b) {
    return size_of(a) < size_of(b);
  });
}

// The device with the most memory; null without devices.
const DeviceReport* largest_device(const Report& report) {
  const auto found = std::max_element(
      report.devices.begin(), report.devices.end(),
      [](const DeviceReport& a, const DeviceReport& b) { return peak_memory(a) < peak_memory(b); });
  return found == report.devices.end() ? nullptr : &*found;
}

std::string list(const std::vector<std::string>& sentences) {
  std::string html = "<ul>\n";
  for (const std::string& sentence : sentences) html += "<li>" + prose_html(sentence) + "</li>\n";
  return html + "</ul>\n";
}

struct Run {
  const char* name;
  const std::vector<Report>* reports;
};

std::string about(const Run& run) {
  const Report& first = run.reports->front();
  return std::string(run.name) + ": " + util::base_name(first.program) + ", " +
         (run.reports->size() == 1 ? name_of(first, true)
                                   : util::format_count(run.reports->size()) + " processes") +
         ", started " + util::format_wall_time(first.start_wall);
}

// One kind of chart for both runs; "" where neither has it.
template <typename Chart>
std::string charts(const std::string& title, const std::vector<Run>& runs, const Chart& chart) {
  std::string html;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Report& report = largest_of(*runs[i].reports);
    const DeviceReport* device = largest_device(report);
    const std::string drawn =
        device == nullptr ? "" : chart("run" + std::to_string(i), report, *device);
    if (drawn.empty()) continue;
    html += "<h3>" + escape_html(std::string(runs[i].name) + ", " + name_of(report, true)) +
            "</h3>\n<div class=\"wide\">" + drawn + "</div>\n";
  }
  if (html.empty()) return "";
  return "<section>\n<h2>" + escape_html(title) + "</h2>\n" + html + "</section>\n";
}

std::string all_charts(const std::vector<Run>& runs) {
  std::vector<Report> shown;
  for (const Run& run : runs) shown.push_back(largest_of(*run.reports));
  const Scales scales = scales_of(shown);
  const std::string memory =
      charts("Memory over time", runs,
             [&](const std::string& id, const Report& report, const DeviceReport& device) {
               return memory_chart(id + "-memory", report, device, scales);
             });
  const std::string peaks =
      charts("Peaks of memory", runs,
             [&](const std::string& id, const Report& report, const DeviceReport& device) {
               return peaks_chart(id + "-peaks", report, device, scales);
             });
  const std::string times = charts(
      "Time of calls", runs, [&](const std::string& id, const Report&, const DeviceReport& device) {
        return latency_chart(id + "-times", times_of(device), scales);
      });
  const std::string sizes =
      charts("Requested sizes", runs,
             [&](const std::string& id, const Report&, const DeviceReport& device) {
               return sizes_chart(id + "-sizes", device, scales);
             });
  const std::string remark =
      "<p class=\"quiet\">The charts are of the process and the device with the most memory in "
      "each run. Both runs have one scale.</p>\n";
  return remark + memory + peaks + times + sizes;
}

std::string tables(const Difference& difference) {
  std::string html;
  for (const ChangeGroup& group : difference.groups) {
    const bool words = group.changes.front().change.empty() && &group == &difference.groups.front();
    std::vector<std::vector<std::string>> rows = {{"", "before", "after"}};
    if (!words) rows.front().emplace_back("change");
    for (const Change& change : group.changes) {
      rows.push_back({change.name, change.before, change.after});
      if (!words) rows.back().push_back(change.change);
    }
    html += html_table(group.title, rows, words ? "words" : "");
  }
  return html;
}

}  // namespace

std::string difference_page(const std::vector<Report>& before, const std::vector<Report>& after) {
  const Difference difference = difference_of(before, after);
  const std::vector<Run> runs = {{"before", &before}, {"after", &after}};
  std::string content =
      "<section class=\"story\" aria-labelledby=\"story\">\n<h2 id=\"story\" "
      "class=\"headline\">" +
      prose_html(difference.headline) + "</h2>\n";
  if (!difference.notes.empty()) content += list(difference.notes);
  content += "</section>\n<section aria-labelledby=\"changes\">\n<h2 id=\"changes\">What changed" +
             std::string("</h2>\n") + tables(difference) + "<p class=\"quiet\">" +
             prose_html(kNoiseRule) + "</p>\n</section>\n<section aria-labelledby=\"charts\">\n" +
             "<h2 id=\"charts\">Both runs</h2>\n" + all_charts(runs) + "</section>\n";
  return fill_template(
      kPageTemplate,
      {{"title", "cupool: two runs"},
       {"heading", "Two runs under cupool"},
       {"about", escape_html(about(runs[0])) + "<br>" + escape_html(about(runs[1]))},
       {"navigation",
        "<li><a href=\"#story\">In short</a></li>\n<li><a href=\"#changes\">What changed</a>"
        "</li>\n<li><a href=\"#charts\">Both runs</a></li>\n"},
       {"content", content},
       {"footer",
        escape_html("Made by cupool diff " CUPOOL_VERSION
                    ". One file, without scripts or network access. docs/statistics.md explains "
                    "every figure.")}});
}

}  // namespace cupool::cli
