// SPDX-License-Identifier: Apache-2.0
// The processes of a job side by side. Of many, only outliers are drawn and listed one by one.
#include <algorithm>
#include <array>

#include "cli/page/sections.h"
#include "cli/page/story.h"
#include "cli/page/svg.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

constexpr double kWholeWidth = 860;
constexpr double kNamesWidth = 210;
constexpr double kRowHeight = 64;
constexpr double kBarHeight = 40;  // height of the highest bar
constexpr std::size_t kBins = 40;
constexpr std::size_t kMostDots = 200;  // of a column

void draw_bars(Svg* svg, const Comparison& column, const LinearScale& x, double bottom) {
  std::array<std::size_t, kBins> bins{};
  for (std::size_t i = 0; i < column.values.size(); ++i) {
    if (column.is_outlier[i] || column.values[i] < 0) continue;
    const auto bin = static_cast<std::size_t>(column.values[i] / x.highest * kBins);
    ++bins[std::min(bin, kBins - 1)];
  }
  const std::size_t most = std::max<std::size_t>(*std::max_element(bins.begin(), bins.end()), 1);
  const double width = (x.to - x.from) / kBins;
  for (std::size_t i = 0; i < kBins; ++i) {
    if (bins[i] == 0) continue;
    const double height =
        std::max(kBarHeight * static_cast<double>(bins[i]) / static_cast<double>(most), 1.0);
    const double left = x.from + width * static_cast<double>(i);
    svg->rect(left, bottom - height, width - 1, height, "c-application");
    const double upper = x.highest * static_cast<double>(i + 1) / kBins;
    svg->hit(left, bottom - kBarHeight, width, kBarHeight,
             {"up to " + column.format(whole_number(upper)) + ": " + util::format_count(bins[i]) +
              " processes"});
  }
}

void draw_outliers(Svg* svg, const std::vector<std::string>& names, const Comparison& column,
                   const LinearScale& x, double middle) {
  std::size_t drawn = 0;
  for (std::size_t i = 0; i < names.size() && drawn < kMostDots; ++i) {
    if (!column.is_outlier[i]) continue;
    ++drawn;
    const double place = x(column.values[i]);
    svg->circle(place, middle, 4, "c-event");
    svg->hit(place - 5, middle - 5, 10, 10,
             {names[i] + ": " + column.name + " " + column.texts[i]});
  }
}

std::string processes_chart(const std::string& id, const std::vector<std::string>& names,
                            const std::vector<Comparison>& columns) {
  Svg svg(id, "Distribution of " + util::format_count(names.size()) + " processes",
          "A histogram for each figure; outliers are dots. The table has the quartiles.",
          kWholeWidth, kRowHeight * static_cast<double>(columns.size()) + 8);
  double bottom = kBarHeight + 8;
  for (const Comparison& column : columns) {
    const double highest = *std::max_element(column.values.begin(), column.values.end());
    const LinearScale x{std::max(highest, 1.0), kNamesWidth, kWholeWidth - 16};
    svg.text(kNamesWidth - 12, bottom - kBarHeight / 2 + 4, column.name, "end");
    svg.line(x.from, bottom, x.to, bottom, "axis");
    svg.text(x.from, bottom + 14, "0", "start", "tick");
    svg.text(x.to, bottom + 14, column.format(whole_number(highest)), "end", "tick");
    draw_bars(&svg, column, x, bottom);
    draw_outliers(&svg, names, column, x, bottom - kBarHeight / 2);
    bottom += kRowHeight;
  }
  return svg.finish();
}

}  // namespace

Section processes_section(const std::vector<Report>& reports) {
  Section section{"processes", "Processes", ""};
  const std::vector<Comparison> columns = compare_processes(reports);
  const std::vector<std::string> outliers = name_outliers(reports, columns);
  const std::vector<std::string> names = names_in_tables(reports);
  if (outliers.empty()) section.html += "<p>No outliers.</p>\n";
  if (!outliers.empty()) section.html += "<p>Outliers:</p>\n<ul>\n";
  for (const std::string& outlier : outliers) {
    section.html += "<li>" + escape_html(outlier) + "</li>\n";
  }
  if (!outliers.empty()) section.html += "</ul>\n";
  if (reports.size() > kMostRowsOfProcesses) {
    section.html +=
        "<div class=\"wide\">" + processes_chart("processes-chart", names, columns) + "</div>\n";
  }
  section.html +=
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"The processes "
      "side by side\"><table>\n<caption>The processes side by side; outliers are marked "
      "with *</caption>\n<tr><th scope=\"col\">process</th>";
  for (const Comparison& column : columns) {
    section.html += "<th scope=\"col\">" + escape_html(column.name) + "</th>";
  }
  section.html += "</tr>\n";
  const std::vector<std::size_t> listed = processes_with_rows(columns);
  for (const std::size_t i : listed) {
    section.html += "<tr><th scope=\"row\">" + escape_html(names[i]) + "</th>";
    for (const Comparison& column : columns) {
      section.html += column.is_outlier[i]
                          ? "<td class=\"outlier\">* " + escape_html(column.texts[i]) + "</td>"
                          : "<td>" + escape_html(column.texts[i]) + "</td>";
    }
    section.html += "</tr>\n";
  }
  if (listed.size() < reports.size()) {
    for (const DistributionRow& row : distribution_of(columns)) {
      section.html += "<tr class=\"sum\"><th scope=\"row\">" +
                      escape_html(row.name + " of " + util::format_count(reports.size())) + "</th>";
      for (const std::string& text : row.texts)
        section.html += "<td>" + escape_html(text) + "</td>";
      section.html += "</tr>\n";
    }
  }
  section.html += "</table></div>\n<p class=\"quiet\">" + escape_html(kOutlierRule) + "</p>\n";
  return section;
}

}  // namespace cupool::cli
