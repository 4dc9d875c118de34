// SPDX-License-Identifier: Apache-2.0
// The Prometheus report against the rules of its text format and of the textfile collector, line by
// line, and its values against the snapshot.
#include "report/prometheus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "fixed_snapshot.h"

namespace cupool::report {
namespace {

using test::fixed_snapshot;
using testing::HasSubstr;

struct Metric {
  std::string type;
  std::string meaning;
  std::map<std::string, std::string> samples;  // name and labels: value
};

// Fails on a line that the format does not know, and on samples that do not stand with their HELP.
std::map<std::string, Metric> metrics_in(const std::string& text) {
  std::map<std::string, Metric> metrics;
  const std::regex help("# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+)");
  const std::regex type("# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|summary|histogram)");
  const std::regex sample(
      "([a-zA-Z_:][a-zA-Z0-9_:]*)"
      "\\{((?:[a-zA-Z_]\\w*=\"(?:[^\"\\\\\\n]|\\\\[\\\\\"n])*\",?)+)\\} (-?[0-9]+(?:\\.[0-9]+)?)");
  std::string current;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, help)) {
      current = match[1];
      EXPECT_EQ(metrics.count(current), 0u) << current << " stands in two places";
      metrics[current].meaning = match[2];
    } else if (std::regex_match(line, match, type)) {
      EXPECT_EQ(match[1], current) << "TYPE follows HELP";
      metrics[current].type = match[2];
    } else if (std::regex_match(line, match, sample)) {
      const std::string name = match[1];
      const bool of_summary = metrics[current].type == "summary" &&
                              (name == current + "_sum" || name == current + "_count");
      EXPECT_TRUE(name == current || of_summary) << line << " stands under " << current;
      const bool fresh =
          metrics[current].samples.emplace(name + "{" + match[2].str() + "}", match[3]).second;
      EXPECT_TRUE(fresh) << line << " comes twice";
    } else {
      ADD_FAILURE() << "not a line of the format: " << line;
    }
  }
  return metrics;
}

const std::string kLabels = "{device=\"0\",host=\"node17\",pid=\"4242\",rank=\"3\"}";

TEST(PrometheusReport, KeepsToTheFormatAndItsNames) {
  const std::string text = prometheus_report(fixed_snapshot());
  EXPECT_EQ(text.back(), '\n') << "the last line must end";
  for (const auto& [name, metric] : metrics_in(text)) {
    EXPECT_FALSE(metric.samples.empty()) << name;
    EXPECT_EQ(name.rfind("cupool_", 0), 0u) << name;
    const bool total = name.size() > 6 && name.compare(name.size() - 6, 6, "_total") == 0;
    EXPECT_EQ(total, metric.type == "counter") << name;
    EXPECT_EQ(name.find("_ns"), std::string::npos) << name << ": base units are seconds and bytes";
  }
}

TEST(PrometheusReport, HasEveryCounterAndGauge) {
  stats::Snapshot snapshot = fixed_snapshot();
  const stats::DeviceSnapshot& device = snapshot.devices[0];
  auto metrics = metrics_in(prometheus_report(snapshot));
  std::size_t counters = 0;
#define CUPOOL_COUNTER(key, unit, label, help)                           \
  if (std::string(#unit) != "ns") {                                      \
    ++counters;                                                          \
    EXPECT_EQ(metrics["cupool_" #key].samples["cupool_" #key + kLabels], \
              std::to_string(device[stats::Counter::key]));              \
    EXPECT_EQ(metrics["cupool_" #key].meaning, help);                    \
  }
#define CUPOOL_GAUGE(key, unit, label, help)                           \
  EXPECT_EQ(metrics["cupool_" #key].samples["cupool_" #key + kLabels], \
            std::to_string(device[stats::Gauge::key].current));
#include "stats/counters.def"
  EXPECT_EQ(counters, stats::kCounters - 3) << "three counters are of time";
  EXPECT_EQ(metrics["cupool_message_wait_seconds_total"].type, "counter");
  EXPECT_EQ(
      metrics["cupool_free_wait_seconds_total"].samples["cupool_free_wait_seconds_total" + kLabels],
      "1.250000000");
  EXPECT_EQ(metrics["cupool_held_peak_bytes"].samples["cupool_held_peak_bytes" + kLabels],
            std::to_string(std::int64_t{3072} << 20));
  EXPECT_EQ(metrics["cupool_leaked_peak_blocks"].type, "gauge");
  EXPECT_EQ(metrics["cupool_pool_reserved_bytes"].samples["cupool_pool_reserved_bytes" + kLabels],
            std::to_string(2080u << 20));
  EXPECT_EQ(metrics["cupool_peak_use_taken_bytes"].samples["cupool_peak_use_taken_bytes" + kLabels],
            std::to_string(3088u << 20));
  EXPECT_EQ(metrics["cupool_peak_use_driver_slack_bytes"]
                .samples["cupool_peak_use_driver_slack_bytes" + kLabels],
            std::to_string(16u << 20));
}

TEST(PrometheusReport, TimesAreSummariesInSeconds) {
  auto metrics = metrics_in(prometheus_report(fixed_snapshot()));
  Metric& malloc = metrics["cupool_malloc_duration_seconds"];
  EXPECT_EQ(malloc.type, "summary");
  EXPECT_EQ(
      malloc.samples["cupool_malloc_duration_seconds"
                     "{device=\"0\",host=\"node17\",pid=\"4242\",rank=\"3\",quantile=\"0.99\"}"],
      "0.000001791");
  EXPECT_EQ(malloc.samples["cupool_malloc_duration_seconds_sum" + kLabels], "0.280000000");
  EXPECT_EQ(malloc.samples["cupool_malloc_duration_seconds_count" + kLabels], "1000000");
}

TEST(PrometheusReport, DevicesOfOneMetricStandTogether) {
  stats::Snapshot snapshot = fixed_snapshot();
  snapshot.devices.push_back(test::fixed_device());
  snapshot.devices[1].ordinal = 5;
  snapshot.devices[1].pool = {};
  auto metrics = metrics_in(prometheus_report(snapshot));
  EXPECT_EQ(metrics["cupool_held_bytes"].samples.size(), 2u);
  EXPECT_EQ(metrics["cupool_pool_used_bytes"].samples.size(), 1u) << "one has no pool";
}

// Containers number their processes alike; those that share a directory differ by their host names.
TEST(PrometheusReport, EverySeriesSaysItsHost) {
  for (const auto& [name, metric] : metrics_in(prometheus_report(fixed_snapshot()))) {
    for (const auto& [series, value] : metric.samples) {
      EXPECT_THAT(series, HasSubstr("host=\"node17\",pid=\"4242\""));
    }
  }
}

TEST(PrometheusReport, EscapesWhatComesFromOutside) {
  stats::Snapshot snapshot = fixed_snapshot();
  snapshot.process.program_path = "/a\"b\\c\nd\xff\xc3\xa9\xe2\x82";
  const std::string text = prometheus_report(snapshot);
  metrics_in(text);
  EXPECT_THAT(text, HasSubstr("program=\"/a\\\"b\\\\c\\nd?\xc3\xa9??\""));
}

// Go's reader refuses the whole file for one of these: overlong forms, surrogates, beyond U+10FFFF.
TEST(PrometheusReport, LetsThroughNothingThatIsNotUtf8) {
  const auto written = [](const std::string& path) {
    stats::Snapshot snapshot = fixed_snapshot();
    snapshot.process.program_path = path;
    const std::string text = prometheus_report(snapshot);
    const std::size_t begin = text.find("program=\"") + 9;
    return text.substr(begin, text.find('"', begin) - begin);
  };
  for (const char* wrong :
       {"\xc0\x80", "\xc1\xbf", "\xf5\x80\x80\x80", "\xe0\x80\x80", "\xe0\x9f\xbf", "\xed\xa0\x80",
        "\xed\xbf\xbf", "\xf0\x80\x80\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80"}) {
    EXPECT_EQ(written(wrong), std::string(std::strlen(wrong), '?'));
  }
  for (const char* control : {"\x1b", "\r", "\x7f", "\xc2\x80", "\xc2\x9b"}) {
    EXPECT_EQ(written(control), "?");
  }
  for (const char* right : {"\xc2\xa0", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
                            "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(written(right), right);
  }
}

TEST(PrometheusReport, AnEmptySnapshotHasTheProcessAlone) {
  for (const auto& [name, metric] : metrics_in(prometheus_report(stats::Snapshot{}))) {
    EXPECT_THAT(name, testing::AnyOf(HasSubstr("process"), HasSubstr("report_time")));
  }
}

}  // namespace
}  // namespace cupool::report
