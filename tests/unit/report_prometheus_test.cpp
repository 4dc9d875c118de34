// SPDX-License-Identifier: Apache-2.0
// The Prometheus report against the rules of its text format and of the textfile collector, line by
// line, and its values against the snapshot.
#include "report/prometheus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "fixed_snapshot.h"
#include "temporary_folder.h"

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

// Parts of a whole are one metric with a label, whose sum is the whole.
TEST(PrometheusReport, APartOfAWholeIsALabel) {
  const stats::Snapshot snapshot = fixed_snapshot();
  const stats::DeviceSnapshot& device = snapshot.devices[0];
  auto metrics = metrics_in(prometheus_report(snapshot));
  const auto sum_of = [&metrics](const char* name, std::size_t parts) {
    EXPECT_EQ(metrics[name].samples.size(), parts) << name;
    std::int64_t sum = 0;
    for (const auto& [series, value] : metrics[name].samples) sum += std::stoll(value);
    return sum;
  };
  using stats::Counter;
  using stats::Gauge;
  EXPECT_EQ(sum_of("cupool_free_waits_total", 6), device[Counter::free_waits_total]);
  EXPECT_EQ(sum_of("cupool_malloc_served_total", 4),
            device[Counter::malloc_calls_total] - device[Counter::malloc_failed_total]);
  EXPECT_EQ(sum_of("cupool_held_bytes", 4), device[Gauge::held_bytes].current);
  const Metric& waits = metrics["cupool_free_waits_total"];
  EXPECT_EQ(waits.samples.at("cupool_free_waits_total{device=\"0\",host=\"node17\",pid=\"4242\","
                             "rank=\"3\",reason=\"pending_limit\"}"),
            "50");
  EXPECT_EQ(waits.type, "counter");
}

TEST(PrometheusReport, HasEveryCounterAndGauge) {
  stats::Snapshot snapshot = fixed_snapshot();
  const stats::DeviceSnapshot& device = snapshot.devices[0];
  auto metrics = metrics_in(prometheus_report(snapshot));
  std::size_t counters = 0;
  // Wholes and parts: APartOfAWholeIsALabel.
  const std::set<std::string> in_families = {"served_thread_cache_total",
                                             "served_shared_cache_total",
                                             "served_fresh_total",
                                             "served_passthrough_total",
                                             "free_waits_total",
                                             "free_waits_sync_total",
                                             "free_waits_host_copy_total",
                                             "free_waits_managed_total",
                                             "free_waits_zero_copy_total",
                                             "free_waits_pending_limit_total",
                                             "free_waits_order_total",
                                             "free_passthrough_total",
                                             "free_foreign_total",
                                             "free_null_total",
                                             "free_rejected_total",
                                             "own_async_malloc_calls_total",
                                             "managed_malloc_calls_total",
                                             "array_calls_total",
                                             "host_malloc_calls_total",
                                             "application_bytes",
                                             "rounding_bytes",
                                             "retired_bytes",
                                             "cached_bytes",
                                             "held_bytes"};
#define CUPOOL_COUNTER(key, unit, label, help)                           \
  if (std::string(#unit) != "ns" && in_families.count(#key) == 0) {      \
    ++counters;                                                          \
    EXPECT_EQ(metrics["cupool_" #key].samples["cupool_" #key + kLabels], \
              std::to_string(device[stats::Counter::key]));              \
    EXPECT_EQ(metrics["cupool_" #key].meaning, help);                    \
  }
#define CUPOOL_GAUGE(key, unit, label, help)                             \
  if (in_families.count(#key) == 0) {                                    \
    EXPECT_EQ(metrics["cupool_" #key].samples["cupool_" #key + kLabels], \
              std::to_string(device[stats::Gauge::key].current));        \
  }
#include "stats/counters.def"
  EXPECT_EQ(counters, stats::kCounters - 3 - 19) << "three counters are of time";
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

// Prometheus' own opinion, where its tool is installed.
TEST(PrometheusReport, PleasesPromtool) {
  if (std::system("command -v promtool > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "skipped: promtool is not installed (Debian: package prometheus)";
  }
  const test::TemporaryFolder folder;
  std::ofstream(folder.file("report.prom")) << prometheus_report(fixed_snapshot());
  const std::string output = folder.file("output");
  const int status = std::system(
      ("promtool check metrics < " + folder.file("report.prom") + " > " + output + " 2>&1")
          .c_str());
  EXPECT_EQ(status, 0) << test::content_of(output);
  EXPECT_EQ(test::content_of(output), "");
}

TEST(PrometheusReport, DevicesOfOneMetricStandTogether) {
  stats::Snapshot snapshot = fixed_snapshot();
  snapshot.devices.push_back(test::fixed_device());
  snapshot.devices[1].ordinal = 5;
  snapshot.devices[1].pool = {};
  auto metrics = metrics_in(prometheus_report(snapshot));
  EXPECT_EQ(metrics["cupool_held_bytes"].samples.size(), 2u * 4);
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
