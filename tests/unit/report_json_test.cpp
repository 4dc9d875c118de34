// The JSON report, parsed again and compared with the snapshot figure by figure.
#include "report/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "fixed_snapshot.h"

namespace cupool::report {
namespace {

using nlohmann::json;
using test::fixed_snapshot;

// A device whose every figure is different, so that none can stand in for another.
stats::DeviceSnapshot distinct_device() {
  stats::DeviceSnapshot device;
  device.ordinal = 2;
  std::uint64_t next = std::uint64_t{1} << 60;  // beyond what a double holds exactly
  for (std::uint64_t& counter : device.counters) counter = ++next;
  for (stats::GaugeValue& gauge : device.gauges) {
    gauge.current = static_cast<std::int64_t>(++next);
    gauge.peak = static_cast<std::int64_t>(++next);
  }
  for (stats::HistogramSummary* time :
       {&device.malloc_time, &device.free_time, &device.synchronize_time}) {
    for (std::uint64_t* figure : {&time->count, &time->sum_ns, &time->max_ns, &time->p50_ns,
                                  &time->p90_ns, &time->p99_ns, &time->p99_9_ns}) {
      *figure = ++next;
    }
  }
  return device;
}

void expect_time(const json& got, const stats::HistogramSummary& time) {
  EXPECT_EQ(got.at("count"), time.count);
  EXPECT_EQ(got.at("sum_ns"), time.sum_ns);
  EXPECT_EQ(got.at("max_ns"), time.max_ns);
  EXPECT_EQ(got.at("p50_ns"), time.p50_ns);
  EXPECT_EQ(got.at("p90_ns"), time.p90_ns);
  EXPECT_EQ(got.at("p99_ns"), time.p99_ns);
  EXPECT_EQ(got.at("p99_9_ns"), time.p99_9_ns);
  EXPECT_EQ(got.size(), 7u);
}

TEST(JsonReport, HasEveryFigureOfTheSnapshot) {
  stats::Snapshot snapshot = fixed_snapshot();
  snapshot.devices.push_back(distinct_device());
  const json report = json::parse(json_report(snapshot));
  ASSERT_EQ(report.at("devices").size(), snapshot.devices.size());
  for (std::size_t i = 0; i < snapshot.devices.size(); ++i) {
    const stats::DeviceSnapshot& device = snapshot.devices[i];
    const json& got = report.at("devices").at(i);
    EXPECT_EQ(got.at("ordinal"), device.ordinal);
    EXPECT_EQ(got.at("name"), device.name);
    EXPECT_EQ(got.at("total_memory_bytes"), device.total_memory_bytes);
#define CUPOOL_COUNTER(key, unit, help) \
  EXPECT_EQ(got.at("counters").at(#key), device[stats::Counter::key]) << #key;
#define CUPOOL_GAUGE(key, unit, help)                                                            \
  EXPECT_EQ(got.at("gauges").at(#key).at("current"), device[stats::Gauge::key].current) << #key; \
  EXPECT_EQ(got.at("gauges").at(#key).at("peak"), device[stats::Gauge::key].peak) << #key;
#include "stats/counters.def"
    EXPECT_EQ(got.at("counters").size(), stats::kCounters);
    EXPECT_EQ(got.at("gauges").size(), stats::kGauges);
    expect_time(got.at("times").at("malloc"), device.malloc_time);
    expect_time(got.at("times").at("free"), device.free_time);
    expect_time(got.at("times").at("synchronize"), device.synchronize_time);
  }
}

TEST(JsonReport, NamesTheProcessAndItsSettings) {
  const stats::Snapshot snapshot = fixed_snapshot();
  const json report = json::parse(json_report(snapshot));
  EXPECT_EQ(report.at("schema_version"), 1);
  EXPECT_EQ(report.at("cupool_version"), "0.1.0");
  EXPECT_EQ(report.at("snapshot_number"), 0);
  EXPECT_EQ(report.at("free_mode"), "sync");
  EXPECT_EQ(report.at("backend"), "pool");
  const json& process = report.at("process");
  EXPECT_EQ(process.at("pid"), 4242);
  EXPECT_EQ(process.at("program_path"), "/home/user/train");
  EXPECT_EQ(process.at("argv0"), "./train");
  EXPECT_EQ(process.at("host"), "node17");
  EXPECT_EQ(process.at("rank"), "3");
  EXPECT_EQ(process.at("start_wall_ns"), snapshot.process.start_wall_ns);
  EXPECT_EQ(process.at("end_wall_ns"), snapshot.end_wall_ns);
  ASSERT_EQ(report.at("settings").size(), 4u);
  const json& second = report.at("settings").at(1);
  EXPECT_EQ(second, json::parse(R"({"name": "CUPOOL_BACKEND", "value": "pool",
                                    "origin": "environment", "is_default": false})"));
  EXPECT_EQ(report.at("suggested_settings").at("CUPOOL_PREALLOC"), "3104M");
  EXPECT_EQ(report.at("suggested_settings").at("CUPOOL_RELEASE_THRESHOLD"), "3104M");
}

TEST(JsonReport, ThePoolAndItsSlackAreNullWithoutAPool) {
  stats::Snapshot snapshot = fixed_snapshot();
  const json with = json::parse(json_report(snapshot)).at("devices").at(0);
  EXPECT_EQ(with.at("pool").at("reserved_current_bytes"), 2080u << 20);
  EXPECT_EQ(with.at("pool").at("reserved_high_bytes"), 3090u << 20);
  EXPECT_EQ(with.at("pool").at("used_current_bytes"), std::uint64_t{2048} << 20);
  EXPECT_EQ(with.at("pool").at("used_high_bytes"), 3072u << 20);
  EXPECT_EQ(with.at("driver_slack_bytes"), 32 << 20);
  EXPECT_EQ(with.at("unaccounted_bytes"), 0);
  snapshot.devices[0].pool = {};
  const json without = json::parse(json_report(snapshot)).at("devices").at(0);
  EXPECT_TRUE(without.at("pool").is_null());
  EXPECT_TRUE(without.at("driver_slack_bytes").is_null());
}

TEST(JsonReport, NoLauncherIsANullRank) {
  stats::Snapshot snapshot = fixed_snapshot();
  snapshot.process.rank.clear();
  EXPECT_TRUE(json::parse(json_report(snapshot)).at("process").at("rank").is_null());
}

TEST(JsonReport, PathsThatAreNotUtf8AreReplacedNotFatal) {
  stats::Snapshot snapshot = fixed_snapshot();
  snapshot.process.program_path = "/tmp/\xff\xfe\"\n";
  const json report = json::parse(json_report(snapshot));
  EXPECT_THAT(report.at("process").at("program_path").get<std::string>(),
              testing::AllOf(testing::StartsWith("/tmp/"), testing::EndsWith("\"\n")));
}

TEST(JsonReport, AnEmptySnapshotIsAnObjectWithoutDevices) {
  const json report = json::parse(json_report(stats::Snapshot{}));
  EXPECT_TRUE(report.at("devices").is_array());
  EXPECT_TRUE(report.at("devices").empty());
  EXPECT_TRUE(report.at("suggested_settings").empty());
}

}  // namespace
}  // namespace cupool::report
