// SPDX-License-Identifier: Apache-2.0
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
    time->buckets = {{++next, ++next}, {++next, ++next}};
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
  ASSERT_EQ(got.at("buckets").size(), time.buckets.size());
  for (std::size_t i = 0; i < time.buckets.size(); ++i) {
    EXPECT_EQ(got.at("buckets").at(i).at("upper_bound_ns"), time.buckets[i].upper_bound_ns);
    EXPECT_EQ(got.at("buckets").at(i).at("count"), time.buckets[i].count);
  }
  EXPECT_EQ(got.size(), 8u);
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
#define CUPOOL_COUNTER(key, unit, label, help) \
  EXPECT_EQ(got.at("counters").at(#key), device[stats::Counter::key]) << #key;
#define CUPOOL_GAUGE(key, unit, label, help)                                                     \
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

TEST(JsonReport, SizesAreByPowersOfTwoWithoutTheEmptyOnes) {
  const json device = json::parse(json_report(fixed_snapshot())).at("devices").at(0);
  EXPECT_EQ(device.at("requested_sizes"), json::parse(R"([
      {"upper_bound_bytes": 512, "count": 400000, "bytes": 200000000},
      {"upper_bound_bytes": 1048576, "count": 600000, "bytes": 629145600000}])"));
}

TEST(JsonReport, ThreadsAreListedAndTheOthersSummedUp) {
  const json report = json::parse(json_report(fixed_snapshot()));
  ASSERT_EQ(report.at("threads").size(), 2u);
  EXPECT_EQ(report.at("threads").at(1), json::parse(R"({"tid": 4250, "name": "loader",
      "malloc_calls_total": 200000, "malloc_requested_bytes_total": 1048576,
      "free_calls_total": 200000, "free_waits_total": 50, "free_wait_ns_total": 250000000})"));
  EXPECT_EQ(report.at("other_threads").at("threads"), 17);
  EXPECT_EQ(report.at("other_threads").at("malloc_calls_total"), 100000);
}

TEST(JsonReport, EventsHaveTheirTimes) {
  const json events = json::parse(json_report(fixed_snapshot())).at("events");
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events.at(0), json::parse(R"({"time_ns": 1000, "kind": "growth", "device": 0,
                                          "count": 3, "bytes": 6291456, "duration_ns": 0})"));
  EXPECT_EQ(events.at(1).at("kind"), "wait");
  EXPECT_EQ(events.at(1).at("duration_ns"), 8400000);
}

TEST(JsonReport, SamplesSayWhatCountersGrewBy) {
  stats::Snapshot snapshot = fixed_snapshot();
  const json series = json::parse(json_report(snapshot)).at("series");
  EXPECT_EQ(series.at("interval_ns"), 100000000);
  EXPECT_EQ(series.at("kept_interval_ns"), 200000000);
  ASSERT_EQ(series.at("samples").size(), 2u);
  const json first = series.at("samples").at(0).at("devices").at(0);
  EXPECT_EQ(first.at("counters"), json::parse(R"({"malloc_calls_total": 10})"));
  EXPECT_TRUE(first.at("device_free_bytes").is_null());
  EXPECT_TRUE(first.at("pool_reserved_bytes").is_null());
  EXPECT_EQ(first.at("application_bytes"), 4096);
  EXPECT_EQ(first.at("held_bytes"), 8192);
  const json second = series.at("samples").at(1).at("devices").at(0);
  EXPECT_EQ(second.at("counters"), json::parse(R"({"malloc_calls_total": 15})"));
  EXPECT_EQ(second.at("device_free_bytes"), 100);
  EXPECT_EQ(second.at("device_total_bytes"), 200);
  EXPECT_EQ(second.at("pool_reserved_bytes"), 32 << 20);
  snapshot.series = {};
  EXPECT_TRUE(json::parse(json_report(snapshot)).at("series").is_null());
}

TEST(JsonReport, TheLaneIsOfTheProcess) {
  stats::Snapshot snapshot = fixed_snapshot();
  const auto lane = [&] { return json::parse(json_report(snapshot)).at("process").at("lane"); };
  EXPECT_TRUE(lane().is_null());
  snapshot.lane = {1'500'000'000, 2, "cuA", "this", "cuB"};
  EXPECT_EQ(lane(), json::parse(R"({"seconds": 1.5, "away": 2, "last_call": "cuA", "end": "this",
                                    "end_call": "cuB"})"));
  snapshot.lane = stats::LaneFigures{};
  EXPECT_EQ(lane(), json::parse(R"({"seconds": 0.0, "away": 0, "last_call": null, "end": null,
                                    "end_call": null})"));
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

// docs/statistics.md, The peak use: the parts are of one moment, so they add up.
TEST(JsonReport, ThePartsOfThePeakUseAddUp) {
  stats::Snapshot snapshot = fixed_snapshot();
  const json use = json::parse(json_report(snapshot)).at("devices").at(0).at("peak_use");
  std::int64_t sum = 0;
  for (const char* part : {"application_bytes", "rounding_bytes", "retired_bytes", "cached_bytes",
                           "driver_slack_bytes"}) {
    sum += use.at(part).get<std::int64_t>();
  }
  EXPECT_EQ(use.at("taken_bytes"), sum);
  EXPECT_EQ(sum, std::int64_t{3088} << 20);
  EXPECT_EQ(use.at("plain_bytes"), 0);
  EXPECT_EQ(use.at("time_ns"), 7'000'000'000);
  snapshot.devices[0].peak_use = {};
  EXPECT_TRUE(json::parse(json_report(snapshot)).at("devices").at(0).at("peak_use").is_null());
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
