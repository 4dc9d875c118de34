// SPDX-License-Identifier: Apache-2.0
// Assembles the page from its template and sections.
#include "cli/page/html.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "cli/page/sections.h"
#include "cli/page/story.h"
#include "cli/page/svg.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

// The program of all reports, or the first one and the number of others.
std::string program_of(const std::vector<Report>& reports) {
  std::vector<std::string> names;
  for (const Report& report : reports) {
    const std::string name = util::base_name(report.program);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  std::string text = names.front().empty() ? "a program" : names.front();
  if (names.size() > 1) text += " and " + std::to_string(names.size() - 1) + " more";
  return text;
}

std::string about_one(const Report& report) {
  std::string text = report.program + ", process " + std::to_string(report.pid);
  if (!report.host.empty()) text += " on " + report.host;
  if (!report.rank.empty()) text += ", rank " + report.rank;
  text += "; started " + util::format_wall_time(report.start_wall) + ", ran " +
          util::format_duration_ns(report.ran_ns());
  if (report.snapshot_number != 0) {
    text += "; snapshot " + std::to_string(report.snapshot_number) + " of the running process";
  }
  return text + "; free mode " + report.free_mode + ", backend " + report.backend;
}

std::string about_many(const std::vector<Report>& reports) {
  std::vector<std::string> hosts;
  for (const Report& report : reports) {
    if (std::find(hosts.begin(), hosts.end(), report.host) == hosts.end()) {
      hosts.push_back(report.host);
    }
  }
  return std::to_string(reports.size()) + " processes on " +
         (hosts.size() == 1 ? hosts.front() : std::to_string(hosts.size()) + " hosts") +
         "; the first started " +
         util::format_wall_time(
             std::min_element(reports.begin(), reports.end(), [](const Report& a, const Report& b) {
               return a.start_wall < b.start_wall;
             })->start_wall);
}

// Limits for very large jobs: browsers cannot show the charts of thousands of processes.
constexpr std::size_t kMostProcesses = 64;          // with charts; the table has all
constexpr std::size_t kMostDevices = 16;            // of a process
constexpr std::size_t kMostBytesInFull = 4u << 20;  // of their charts; one process always is
constexpr std::size_t kMostDevicesInAll = 128;      // at least two of each process

std::size_t devices_of_each(std::size_t processes) {
  return std::clamp<std::size_t>(kMostDevicesInAll / processes, 2, kMostDevices);
}

// The processes to show with charts: outliers, then those with the most allocations.
std::vector<std::size_t> processes_in_full(const std::vector<Report>& reports) {
  std::vector<std::size_t> chosen(reports.size());
  std::iota(chosen.begin(), chosen.end(), std::size_t{0});
  if (reports.size() <= kMostProcesses) return chosen;
  std::vector<std::pair<bool, std::uint64_t>> ranks;
  const std::vector<Comparison> columns = compare_processes(reports);
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const bool outlier = std::any_of(columns.begin(), columns.end(), [i](const Comparison& column) {
      return column.is_outlier[i];
    });
    ranks.emplace_back(outlier, reports[i].counter("malloc_calls_total"));
  }
  std::stable_sort(chosen.begin(), chosen.end(),
                   [&ranks](std::size_t a, std::size_t b) { return ranks[a] > ranks[b]; });
  chosen.resize(kMostProcesses);
  return chosen;
}

// `level` of the heading: 2, or 3 in a nested section.
std::string section_html(const Section& section, char level = '2') {
  const std::string heading = std::string("h") + level;
  return "<section aria-labelledby=\"" + section.id + "\">\n<" + heading + " id=\"" + section.id +
         "\">" + escape_html(section.title) + "</" + heading + ">\n" + section.html +
         "</section>\n";
}

std::string link_to(const Section& section) {
  return "<li><a href=\"#" + section.id + "\">" + escape_html(section.title) + "</a></li>\n";
}

// A process in one line: key figures, and the columns in which it is an outlier.
std::string summary_of(const Report& report, std::size_t index,
                       const std::vector<Comparison>& columns) {
  std::uint64_t peak = 0;
  for (const DeviceReport& device : report.devices) peak = std::max(peak, peak_memory(device));
  std::string odd;
  for (const Comparison& column : columns) {
    if (column.is_outlier[index]) odd += (odd.empty() ? "" : ", ") + column.name;
  }
  return escape_html(name_of(report, true)) + " <span class=\"key\">" +
         prose_html(util::format_count(report.counter("malloc_calls_total")) + " allocations,") +
         "</span> <span class=\"key\">" + prose_html("peak " + util::format_bytes(peak)) +
         "</span>" +
         (odd.empty() ? "" : " <span class=\"odd\">outlier: " + escape_html(odd) + "</span>");
}

// One process: its sections, folded if there are `many`.
std::string page_of(const Report& report, std::size_t index, bool many, std::size_t devices,
                    const Scales& scales, const std::vector<Comparison>& columns,
                    std::string* navigation) {
  std::string page;
  if (many) {
    page = "<details class=\"process\"><summary>" + summary_of(report, index, columns) +
           "</summary>\n<p class=\"about\">" + escape_html(about_one(report)) + "</p>\n";
  }
  const std::string prefix = many ? "p" + std::to_string(index) + "-" : "";
  for (const Section& section : sections_of(report, prefix, devices, scales)) {
    page += section_html(section, many ? '3' : '2');
    if (!many) *navigation += link_to(section);
  }
  return page + (many ? "</details>\n" : "");
}

// The processes shown with charts, by index, as far as the page has room for them.
std::map<std::size_t, std::string> pages_in_full(const std::vector<Report>& reports, bool many,
                                                 std::string* navigation) {
  const std::vector<std::size_t> chosen = processes_in_full(reports);
  const Scales scales = scales_of(reports);
  const std::vector<Comparison> columns =
      many ? compare_processes(reports) : std::vector<Comparison>();
  std::map<std::size_t, std::string> pages;
  std::size_t bytes = 0;
  for (const std::size_t i : chosen) {
    std::string page =
        page_of(reports[i], i, many, devices_of_each(chosen.size()), scales, columns, navigation);
    bytes += page.size();
    if (bytes > kMostBytesInFull && !pages.empty()) break;
    pages[i] = std::move(page);
  }
  return pages;
}

}  // namespace

std::string fill_template(const std::string& page,
                          const std::vector<std::pair<std::string, std::string>>& values) {
  std::string filled;
  std::size_t at = 0;
  while (true) {
    const std::size_t open = page.find("{{", at);
    if (open == std::string::npos) break;
    const std::size_t close = page.find("}}", open);
    const std::string name = page.substr(open + 2, close - open - 2);
    const auto value = std::find_if(values.begin(), values.end(),
                                    [&](const auto& entry) { return entry.first == name; });
    if (close == std::string::npos || value == values.end()) {
      throw std::logic_error("the page's template has a mark without a value: " + name);
    }
    filled += page.substr(at, open - at) + value->second;
    at = close + 2;
  }
  return filled + page.substr(at);
}

std::string html_page(const std::vector<Report>& reports) {
  std::string navigation = "<li><a href=\"#story\">In short</a></li>\n";
  std::string content = story_section(reports);
  const bool many = reports.size() > 1;
  if (many) {
    const Section processes = processes_section(reports);
    content += section_html(processes);
    navigation += link_to(processes);
    content += "<section aria-labelledby=\"each\">\n<h2 id=\"each\">Each process</h2>\n";
    navigation += "<li><a href=\"#each\">Each process</a></li>\n";
    content += "<p class=\"quiet\">Charts of a kind have one scale in all processes.</p>\n";
  }
  const std::map<std::size_t, std::string> in_full = pages_in_full(reports, many, &navigation);
  if (in_full.size() < reports.size()) {
    content += "<p class=\"quiet\">Of " + util::format_count(reports.size()) + " processes " +
               std::to_string(in_full.size()) +
               " are shown: outliers, then those with the most allocations. The figures above "
               "include all.</p>\n";
  }
  for (const auto& [index, page] : in_full) content += page;
  if (many) content += "</section>\n";
  const std::string program = program_of(reports);
  return fill_template(
      kPageTemplate,
      {{"title", escape_html("cupool: " + program)},
       {"heading", "<bdi>" + escape_html(program) + "</bdi>" +
                       (reports.front().observe ? ", observed by cupool" : " under cupool")},
       {"about", escape_html(many ? about_many(reports) : about_one(reports.front()))},
       {"navigation", navigation},
       {"content", content},
       {"footer", escape_html("Made by cupool report " CUPOOL_VERSION " from reports of cupool " +
                              reports.front().cupool_version +
                              ". One file, without scripts or network access. "
                              "docs/statistics.md explains every figure.")}});
}

}  // namespace cupool::cli
