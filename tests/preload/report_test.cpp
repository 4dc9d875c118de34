// SPDX-License-Identifier: Apache-2.0
// Where a report goes and in which formats, and what it says beyond counters (docs/statistics.md):
// threads, sizes, events and the time series, held against what the program is known to have done.
#include <unistd.h>

#include <algorithm>

#include "harness.h"

namespace preload {
namespace {

// Style 9: the report goes to standard error by default, as text, after the program's own output.
TEST(Report, IsTextOnStandardErrorByDefault) {
  const ProcessResult result = run_with_library("probe_runtime_shared");
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_NE(result.err.find("cupool"), std::string::npos) << result.describe();
  EXPECT_EQ(result.out, run_plain("probe_runtime_shared").out);
}

TEST(Report, OffMeansNone) {
  const PreloadedRun result = run_preloaded("probe_runtime_shared", {{"CUPOOL_STATS", "off"}});
  EXPECT_TRUE(result.reports.empty());
  EXPECT_EQ(result.process.err, "");
  EXPECT_EQ(result.process.exit_code, 0);
}

// Issue 2: text and JSON come from the same snapshot; the JSON file gets .json appended.
TEST(Report, TextAndJsonTogether) {
  const ScratchFolder folder;
  const ProcessResult result = run_with_library(
      "probe_runtime_shared",
      {{"CUPOOL_STATS", "text,json"}, {"CUPOOL_STATS_FILE", folder.path() + "/report"}});
  EXPECT_EQ(result.err, "") << result.describe();
  const std::string text = read_file(folder.path() + "/report");
  EXPECT_NE(text.find("cupool"), std::string::npos) << text;
  const nlohmann::json report =
      nlohmann::json::parse(read_file(folder.path() + "/report.json"), nullptr, false);
  ASSERT_FALSE(report.is_discarded());
  expect_identity(report);
  const auto mallocs = report.at("devices").at(0).at("counters").at("malloc_calls_total");
  EXPECT_EQ(mallocs, counts_of(result.out).mallocs);
}

// Every format comes from one snapshot, and none takes another's file.
TEST(Report, AllFormatsTogether) {
  const ScratchFolder folder;
  const ProcessResult result = run_with_library(
      "probe_runtime_shared", {{"CUPOOL_STATS", "text,json,csv,prometheus"},
                               {"CUPOOL_STATS_FILE", folder.path() + "/report.log"}});
  EXPECT_EQ(result.err, "") << result.describe();
  EXPECT_EQ(folder.files().size(), 4u) << "and no half-written file";
  const std::string mallocs = std::to_string(counts_of(result.out).mallocs);
  const std::string csv = read_file(folder.path() + "/report.log.csv");
  EXPECT_NE(csv.find(",0,counter,malloc_calls_total," + mallocs + "\r\n"), std::string::npos)
      << csv;
  const std::string prometheus = read_file(folder.path() + "/report.log.prom");
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof(host) - 1), 0);
  EXPECT_NE(
      prometheus.find("cupool_malloc_calls_total{device=\"0\",host=\"" + std::string(host) +
                      "\",pid=\"" + std::to_string(result.pid) + "\",rank=\"\"} " + mallocs + "\n"),
      std::string::npos)
      << prometheus;
  EXPECT_FALSE(read_file(folder.path() + "/report.log").empty());
  EXPECT_FALSE(read_file(folder.path() + "/report.log.json").empty());
}

TEST(ReportDetails, EveryThreadIsListedWithItsWork) {
  const PreloadedRun result = expect_same("probe_runtime_shared threads=3 iterations=20");
  expect_counts(result);
  const nlohmann::json& threads = result.reports.at(0).at("threads");
  ASSERT_EQ(threads.size(), 3u) << threads.dump(1);
  for (const nlohmann::json& thread : threads) {
    EXPECT_EQ(thread.at("malloc_calls_total"), 40);
    EXPECT_EQ(thread.at("free_calls_total"), 40);
    EXPECT_EQ(thread.at("name"), "probe_runtime_s") << "the kernel keeps 15 letters";
  }
  EXPECT_EQ(result.reports.at(0).at("other_threads").at("threads"), 0);
}

TEST(ReportDetails, SizesAreThoseThatWereAskedFor) {
  const PreloadedRun result = expect_same("probe_runtime_shared iterations=10");
  std::map<uint64_t, uint64_t> counts;
  for (const nlohmann::json& bucket :
       result.reports.at(0).at("devices").at(0).at("requested_sizes")) {
    counts[bucket.at("upper_bound_bytes")] = bucket.at("count");
  }
  // Two each of 1, 511, 512, 513, 4096, 64 Ki, 100000, 1 Mi, 2 Mi, 3 Mi + 17 (runtime_work.cpp).
  const std::map<uint64_t, uint64_t> expected = {{1, 2},       {512, 4},     {1024, 2},
                                                 {4096, 2},    {65536, 2},   {131072, 2},
                                                 {1 << 20, 2}, {2 << 20, 2}, {4 << 20, 2}};
  EXPECT_EQ(counts, expected);
}

TEST(ReportDetails, GrowthIsOnTheTimeLine) {
  const PreloadedRun result = expect_same("probe_runtime_shared");
  const nlohmann::json& report = result.reports.at(0);
  const uint64_t ran_ns = report.at("process").at("end_wall_ns").get<uint64_t>() -
                          report.at("process").at("start_wall_ns").get<uint64_t>();
  uint64_t growth = 0;
  uint64_t bytes = 0;
  uint64_t before = 0;
  for (const nlohmann::json& event : report.at("events")) {
    EXPECT_GE(event.at("time_ns"), before) << "by time";
    before = event.at("time_ns");
    EXPECT_LE(before, ran_ns);
    if (event.at("kind") != "growth") continue;
    growth += event.at("count").get<uint64_t>();
    bytes += event.at("bytes").get<uint64_t>();
  }
  EXPECT_GT(growth, 0u);
  EXPECT_EQ(growth, result.counter("growth_total"));
  EXPECT_EQ(bytes, result.counter("growth_bytes_total"));
}

// docs/statistics.md, The peak use: what the steps of sizes and pools cost a small program.
TEST(ReportDetails, ASmallProgramSeesWhatTheStepsCost) {
  const PreloadedRun result = expect_same("probe_series mode=small");
  const nlohmann::json& device = result.reports.at(0).at("devices").at(0);
  const nlohmann::json& use = device.at("peak_use");
  ASSERT_TRUE(use.is_object()) << device.dump(1);
  EXPECT_EQ(use.at("application_bytes"), 300 << 10);
  EXPECT_GT(use.at("rounding_bytes"), 0);
  EXPECT_EQ(use.at("taken_bytes"), 32 << 20) << "one growth step of one pool";
  EXPECT_EQ(use.at("driver_slack_bytes").get<int64_t>(),
            (32 << 20) - (300 << 10) - use.at("rounding_bytes").get<int64_t>());
}

// Blocks of 64 MiB and 1 MiB were live together, and the report is taken when none is.
TEST(ReportDetails, ThePeakUseIsOfItsMoment) {
  const PreloadedRun result = expect_same("probe_series mode=steps");
  const nlohmann::json& use = result.reports.at(0).at("devices").at(0).at("peak_use");
  EXPECT_EQ(use.at("application_bytes"), 65 << 20);
  EXPECT_EQ(use.at("retired_bytes"), 0);
  EXPECT_EQ(use.at("cached_bytes"), 0);
  EXPECT_GE(use.at("time_ns"), 100'000'000) << "after the first while";
  EXPECT_LE(use.at("time_ns"),
            result.reports.at(0).at("process").at("end_wall_ns").get<uint64_t>() -
                result.reports.at(0).at("process").at("start_wall_ns").get<uint64_t>());
}

TEST(ReportDetails, AnOutOfMemoryErrorAvertedIsAnEvent) {
  const PreloadedRun result = run_preloaded("probe_oom", {{"CUPOOL_SIM_MEMORY", "256M"}});
  ASSERT_EQ(result.reports.size(), 1u) << result.describe();
  ASSERT_GT(result.counter("oom_rescues_total"), 0u) << result.describe();
  uint64_t rescues = 0;
  for (const nlohmann::json& event : result.reports[0].at("events")) {
    if (event.at("kind") == "oom_rescue") rescues += event.at("count").get<uint64_t>();
  }
  EXPECT_EQ(rescues, result.counter("oom_rescues_total"));
}

TEST(ReportDetails, ThereIsNoSeriesUnlessItIsAskedFor) {
  const PreloadedRun result = expect_same("probe_runtime_shared");
  EXPECT_TRUE(result.reports.at(0).at("series").is_null());
}

// RLIMIT_FSIZE raises SIGXFSZ, which the program does not know (docs/statistics.md: a file that
// cannot be written costs one warning).
TEST(ReportDetails, AFileLimitCostsAWarningAndNotTheProgram) {
  const ScratchFolder folder;
  const std::string probe = "probe_runtime_shared file_limit=500";
  const PreloadedRun result = run_preloaded(
      probe, {{"CUPOOL_STATS", "text"}, {"CUPOOL_STATS_FILE", folder.path() + "/report.txt"}});
  EXPECT_EQ(result.process.signal, 0) << result.describe();
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_EQ(result.process.out, run_plain(probe).out);
  EXPECT_TRUE(contains(result.process.err, "report.txt: File too large; the report goes to"))
      << result.describe();
  EXPECT_TRUE(contains(result.process.err, "malloc")) << "no report:\n" << result.describe();
}

// --- the time series ---

const Environment kOften = {{"CUPOOL_STATS_INTERVAL", "5ms"}};

TEST(Series, ShowsWhatTheProgramHeldAndWhen) {
  const PreloadedRun result = expect_same("probe_series mode=steps", 0, 1, kOften);
  const nlohmann::json& series = result.reports.at(0).at("series");
  ASSERT_FALSE(series.is_null());
  EXPECT_EQ(series.at("interval_ns"), 5'000'000);
  const nlohmann::json& samples = series.at("samples");
  ASSERT_GE(samples.size(), 10u) << "450 ms in steps of 5 ms";
  std::vector<uint64_t> levels;
  uint64_t mallocs = 0;
  uint64_t before = 0;
  for (const nlohmann::json& sample : samples) {
    EXPECT_GE(sample.at("time_ns"), before);
    before = sample.at("time_ns");
    for (const nlohmann::json& device : sample.at("devices")) {
      const uint64_t level = device.at("application_bytes").get<uint64_t>() >> 20;
      if (levels.empty() || levels.back() != level) levels.push_back(level);
      mallocs += device.at("counters").value("malloc_calls_total", uint64_t{0});
      EXPECT_GE(device.at("device_total_bytes"), device.at("device_free_bytes"));
    }
  }
  if (!levels.empty() && levels.front() == 0) levels.erase(levels.begin());  // before the first
  EXPECT_EQ(levels, (std::vector<uint64_t>{1, 65, 1, 0}));
  EXPECT_EQ(mallocs, 2u) << "what counters grew by adds up to their totals";
}

// Figures of one sample are of one moment, whatever the program does while they are collected.
class SeriesIsOfOneMoment : public testing::TestWithParam<const char*> {};

TEST_P(SeriesIsOfOneMoment, PoolsReserveWhatIsHeld) {
  const PreloadedRun result =
      expect_same(GetParam(), 0, 1, {{"CUPOOL_STATS_INTERVAL", "1"}, {"CUPOOL_SIM_MEMORY", "16G"}});
  uint64_t most = 0;
  for (const nlohmann::json& sample : result.reports.at(0).at("series").at("samples")) {
    for (const nlohmann::json& device : sample.at("devices")) {
      const uint64_t held = device.at("held_bytes").get<uint64_t>();
      most = std::max(most, held);
      if (device.at("pool_reserved_bytes").is_null()) {
        EXPECT_EQ(held, 0u) << "there is no pool before the first block";
      } else {
        EXPECT_GE(device.at("pool_reserved_bytes").get<uint64_t>(), held) << sample.dump(1);
      }
    }
  }
  EXPECT_GT(most, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, SeriesIsOfOneMoment,
                         testing::Values("probe_series mode=steps", "probe_series mode=growth"),
                         [](const auto& row) { return std::string(row.param).substr(18); });

TEST(Series, HasTheFreeMemoryOfTheDevice) {
  const PreloadedRun result = run_preloaded("probe_series mode=steps", kOften);
  uint64_t least = UINT64_MAX;
  uint64_t most = 0;
  for (const nlohmann::json& sample : result.reports.at(0).at("series").at("samples")) {
    for (const nlohmann::json& device : sample.at("devices")) {
      if (device.at("device_free_bytes").is_null()) continue;  // the one at exit
      least = std::min(least, device.at("device_free_bytes").get<uint64_t>());
      most = std::max(most, device.at("device_free_bytes").get<uint64_t>());
    }
  }
  ASSERT_NE(most, 0u) << "the driver was never asked";
  EXPECT_GE(most - least, uint64_t{64} << 20);
}

TEST(Series, IsInTheTableToo) {
  const ScratchFolder folder;
  run_preloaded("probe_series mode=steps", {{"CUPOOL_STATS_INTERVAL", "5"},
                                            {"CUPOOL_STATS", "csv"},
                                            {"CUPOOL_STATS_FILE", folder.path() + "/report.csv"}});
  const std::string table = read_file(folder.path() + "/report.csv");
  EXPECT_NE(table.find(",0,sample,application_bytes,68157440\r\n"), std::string::npos) << table;
  EXPECT_NE(table.find(",0,sample_growth,malloc_calls_total,1\r\n"), std::string::npos) << table;
}

TEST(Series, PrometheusFileFollowsTheProgram) {
  const ScratchFolder folder;
  const std::string file = folder.path() + "/report.prom";
  const PreloadedRun result =
      run_preloaded("probe_series mode=prometheus", {{"CUPOOL_STATS_INTERVAL", "20ms"},
                                                     {"CUPOOL_STATS", "json,prometheus"},
                                                     {"CUPOOL_STATS_FILE", file},
                                                     {"PROBE_SERIES_FILE", file}});
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_EQ(result.process.err, "");
  EXPECT_EQ(folder.files().size(), 2u) << "the other format comes once, at exit";
}

TEST(Series, PrometheusFileHasOneNameForTheLifeOfTheProcess) {
  const ScratchFolder folder;
  run_preloaded("probe_series mode=seconds", {{"CUPOOL_STATS_INTERVAL", "20ms"},
                                              {"CUPOOL_STATS", "prometheus"},
                                              {"CUPOOL_STATS_FILE", folder.path() + "/%t.prom"}});
  EXPECT_EQ(folder.files().size(), 1u);
}

TEST(Series, CostsAThreadOnlyWhereItIsAskedFor) {
  expect_thread_only_with(kOften);
}

}  // namespace
}  // namespace preload
