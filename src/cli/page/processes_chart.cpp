// SPDX-License-Identifier: Apache-2.0
// A job of many processes: a histogram for each figure. Only outliers are drawn one by one.
#include <algorithm>
#include <array>

#include "cli/page/charts.h"
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
    if (column.is_outlier[i]) continue;
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

void draw_outliers(Svg* svg, const std::vector<Report>& reports, const Comparison& column,
                   const LinearScale& x, double middle) {
  std::size_t drawn = 0;
  for (std::size_t i = 0; i < reports.size() && drawn < kMostDots; ++i) {
    if (!column.is_outlier[i]) continue;
    ++drawn;
    const double place = x(column.values[i]);
    svg->circle(place, middle, 4, "c-event");
    svg->hit(place - 5, middle - 5, 10, 10,
             {name_of(reports[i], true) + ": " + column.name + " " + column.texts[i]});
  }
}

}  // namespace

std::string processes_chart(const std::string& id, const std::vector<Report>& reports,
                            const std::vector<Comparison>& columns) {
  Svg svg(id, "Distribution of " + util::format_count(reports.size()) + " processes",
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
    draw_outliers(&svg, reports, column, x, bottom - kBarHeight / 2);
    bottom += kRowHeight;
  }
  return svg.finish();
}

}  // namespace cupool::cli
