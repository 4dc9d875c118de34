// SPDX-License-Identifier: Apache-2.0
// Compares the processes of a job and finds outliers.
#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <string_view>

#include "cli/page/story.h"
#include "stats/labels.h"
#include "util/text.h"

namespace cupool::cli {

const char* const kOutlierRule =
    "An outlier is more than 1.5 times the interquartile range beyond the quartiles, and more than "
    "a quarter away from the median. With three processes, it is more than twice the median, or "
    "less than half of it; with two there is none.";

namespace {

constexpr double kFences = 1.5;
constexpr double kLeastDifference = 0.25;
constexpr double kRatioOfFew = 2.0;
constexpr std::size_t kEnoughForQuartiles = 4;
constexpr std::size_t kEnoughForMedian = 3;  // of two values, each is as far from it

// A quantile of sorted values, with linear interpolation.
double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(place));
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = place - static_cast<double>(below);
  return sorted[below] + (sorted[above] - sorted[below]) * part;
}

std::uint64_t sum_of(const Report& report,
                     const std::function<std::uint64_t(const DeviceReport&)>& value) {
  std::uint64_t sum = 0;
  for (const DeviceReport& device : report.devices) sum += value(device);
  return sum;
}

std::uint64_t highest_of(const Report& report,
                         const std::function<std::uint64_t(const DeviceReport&)>& value) {
  std::uint64_t highest = 0;
  for (const DeviceReport& device : report.devices) highest = std::max(highest, value(device));
  return highest;
}

struct Column {
  std::string name;
  std::function<std::uint64_t(const Report&)> value;
  std::string (*format)(std::uint64_t);
  const char* observed = nullptr;  // the figure of an observed run; null: it has none
};

// Those that there are, sorted.
std::vector<double> sorted_values(const std::vector<double>& values) {
  std::vector<double> sorted;
  std::copy_if(values.begin(), values.end(), std::back_inserter(sorted),
               [](double value) { return value >= 0; });
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

// The values of one kind of process; -1 in place of the others.
std::vector<double> values_of_kind(const std::vector<double>& values,
                                   const std::vector<Report>& reports, bool observed) {
  std::vector<double> kind = values;
  for (std::size_t i = 0; i < kind.size(); ++i) {
    if (reports[i].observe.has_value() != observed) kind[i] = -1;
  }
  return kind;
}

// What the driver takes is no measure of what cupool takes.
std::vector<bool> outliers_of_each_kind(const std::vector<double>& values,
                                        const std::vector<Report>& reports) {
  std::vector<bool> outliers = find_outliers(values_of_kind(values, reports, false));
  const std::vector<bool> observed = find_outliers(values_of_kind(values, reports, true));
  for (std::size_t i = 0; i < outliers.size(); ++i) outliers[i] = outliers[i] || observed[i];
  return outliers;
}

constexpr const char* kRunTime = "run time";
constexpr std::string_view kLeaked = label_of(stats::Gauge::leaked_bytes);

std::vector<Column> columns_of_table() {
  const auto counter = [](stats::Counter which, std::string (*format)(std::uint64_t),
                          const char* observed = nullptr) {
    return Column{std::string(label_of(which)),
                  [which](const Report& report) { return report.counter(which); }, format,
                  observed};
  };
  return {
      {kRunTime, [](const Report& r) { return r.ran_ns(); }, util::format_duration_ns},
      counter(stats::Counter::malloc_calls_total, util::format_count, "malloc_calls_total"),
      counter(stats::Counter::frees_unwaited_busy_total, util::format_count),
      counter(stats::Counter::free_wait_ns_total, util::format_duration_ns),
      {"peak memory", [](const Report& r) { return highest_of(r, peak_memory); },
       util::format_bytes, "live_peak_bytes"},
      {"malloc p99",
       [](const Report& r) {
         return highest_of(r, [](const DeviceReport& d) { return d.malloc_time.p99; });
       },
       util::format_duration_ns},
      {"free p99",
       [](const Report& r) {
         return highest_of(r, [](const DeviceReport& d) { return d.free_time.p99; });
       },
       util::format_duration_ns},
      {std::string(kLeaked),
       [](const Report& r) {
         return sum_of(r, [](const DeviceReport& d) {
           return bytes_of(d.gauge(stats::Gauge::leaked_bytes).current);
         });
       },
       util::format_bytes},
  };
}

}  // namespace

std::vector<bool> find_outliers(const std::vector<double>& values) {
  std::vector<bool> outliers(values.size(), false);
  const std::vector<double> sorted = sorted_values(values);
  if (sorted.size() < kEnoughForMedian) return outliers;
  const double median = quantile(sorted, 0.5);
  const double low = quantile(sorted, 0.25);
  const double high = quantile(sorted, 0.75);
  const double reach = kFences * (high - low);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    if (value < 0) continue;
    if (sorted.size() < kEnoughForQuartiles) {
      outliers[i] = value > kRatioOfFew * median || value * kRatioOfFew < median;
    } else {
      outliers[i] = (value < low - reach || value > high + reach) &&
                    std::fabs(value - median) > kLeastDifference * std::fabs(median);
    }
  }
  return outliers;
}

std::vector<Comparison> compare_processes(const std::vector<Report>& reports) {
  std::vector<Comparison> table;
  for (const Column& column : columns_of_table()) {
    Comparison row;
    row.name = column.name;
    row.format = column.format;
    for (const Report& report : reports) {
      if (report.observe && column.name != kRunTime && column.observed == nullptr) {
        row.values.push_back(-1);
        row.texts.emplace_back("-");
        continue;
      }
      const bool seen = report.observe && column.observed != nullptr;
      const std::uint64_t value =
          seen ? observed_figure(report, column.observed) : column.value(report);
      row.values.push_back(static_cast<double>(value));
      row.texts.push_back(column.format(value));
    }
    if (sorted_values(row.values).empty()) continue;
    row.is_outlier = outliers_of_each_kind(row.values, reports);
    // Nothing leaked is nothing to look into.
    for (std::size_t i = 0; column.name == kLeaked && i < reports.size(); ++i) {
      row.is_outlier[i] = row.is_outlier[i] && row.values[i] > 0;
    }
    table.push_back(std::move(row));
  }
  return table;
}

std::vector<std::string> names_in_tables(const std::vector<Report>& reports) {
  const auto program_of = [](const Report& report) { return util::base_name(report.program); };
  const bool differ = std::any_of(reports.begin(), reports.end(), [&](const Report& report) {
    return program_of(report) != program_of(reports.front());
  });
  std::vector<std::string> names;
  for (const Report& report : reports) {
    names.push_back(name_of(report, true) + (differ ? ", " + program_of(report) : ""));
  }
  return names;
}

std::vector<std::string> name_outliers(const std::vector<Report>& reports,
                                       const std::vector<Comparison>& columns) {
  std::vector<std::string> sentences;
  const std::vector<std::string> names = names_in_tables(reports);
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const bool observed = reports[i].observe.has_value();
    std::string found;
    for (const Comparison& column : columns) {
      if (!column.is_outlier[i]) continue;
      const std::vector<double> sorted =
          sorted_values(values_of_kind(column.values, reports, observed));
      const bool above = column.values[i] > quantile(sorted, 0.5);
      found += (found.empty() ? "" : ", ") + column.name + " " + column.texts[i] +
               (above ? " (high)" : " (low)");
    }
    if (!found.empty()) sentences.push_back(names[i] + ": " + found);
  }
  if (sentences.size() > kMostRowsOfProcesses) {
    const std::size_t others = sentences.size() - kMostRowsOfProcesses;
    sentences.resize(kMostRowsOfProcesses);
    sentences.push_back(util::format_count(others) + " more processes have outliers");
  }
  return sentences;
}

std::vector<std::size_t> processes_with_rows(const std::vector<Comparison>& columns) {
  const std::size_t processes = columns.empty() ? 0 : columns.front().values.size();
  const bool all = processes <= kMostRowsOfProcesses;
  std::vector<std::size_t> rows;
  for (std::size_t i = 0; i < processes && rows.size() < kMostRowsOfProcesses; ++i) {
    const bool outlier = std::any_of(columns.begin(), columns.end(), [i](const Comparison& column) {
      return column.is_outlier[i];
    });
    if (all || outlier) rows.push_back(i);
  }
  return rows;
}

std::vector<DistributionRow> distribution_of(const std::vector<Comparison>& columns) {
  std::vector<DistributionRow> rows = {{"lowest", {}},
                                       {"lower quartile", {}},
                                       {"median", {}},
                                       {"upper quartile", {}},
                                       {"highest", {}}};
  for (const Comparison& column : columns) {
    const std::vector<double> sorted = sorted_values(column.values);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const double share = static_cast<double>(i) / static_cast<double>(rows.size() - 1);
      rows[i].texts.push_back(
          column.format(static_cast<std::uint64_t>(std::llround(quantile(sorted, share)))));
    }
  }
  return rows;
}

}  // namespace cupool::cli
