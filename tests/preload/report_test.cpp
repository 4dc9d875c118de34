// What a report says beyond counters (docs/statistics.md): threads, sizes, events and the time
// series, held against what the program is known to have done.
#include "harness.h"

namespace preload {
namespace {

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

}  // namespace
}  // namespace preload
