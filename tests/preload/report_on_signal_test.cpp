// SPDX-License-Identifier: Apache-2.0
// A report that is asked for by a signal (CUPOOL_STATS_SIGNAL) while the program does whatever it
// does.
#include "harness.h"

namespace preload {
namespace {

const Environment kOnUsr1 = {{"CUPOOL_STATS_SIGNAL", "USR1"}};

// The snapshots among the reports, by their number; the report at exit is number 0.
std::map<int, nlohmann::json> by_number(const PreloadedRun& result) {
  std::map<int, nlohmann::json> reports;
  for (const nlohmann::json& report : result.reports) {
    EXPECT_TRUE(reports.emplace(report.at("snapshot_number").get<int>(), report).second);
  }
  return reports;
}

uint64_t mallocs_in(const nlohmann::json& report) {
  return report.at("devices").at(0).at("counters").at("malloc_calls_total").get<uint64_t>();
}

TEST(ReportOnSignal, IsASnapshotOfThatMoment) {
  const PreloadedRun result = run_preloaded("probe_life_signal mode=plain", kOnUsr1);
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_EQ(result.process.err, "");
  auto reports = by_number(result);
  ASSERT_EQ(reports.size(), 4u);
  for (const auto& [number, report] : reports) {
    expect_identity(report);
    EXPECT_EQ(mallocs_in(report), number == 0 ? 32u : 8u * static_cast<uint64_t>(number));
    EXPECT_FALSE(report.at("devices").at(0).at("pool").is_null()) << "the driver was not asked";
  }
}

TEST(ReportOnSignal, GoesToStandardErrorWithoutAFile) {
  const ProcessResult result =
      run_with_library("probe_life_signal mode=leaving", {{"CUPOOL_STATS_SIGNAL", "SIGUSR1"}});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_NE(result.err.find("of the running process"), std::string::npos) << result.describe();
  EXPECT_NE(result.err.find("\n  At exit      "), std::string::npos) << result.describe();
}

class SignalIsHarmless : public testing::TestWithParam<const char*> {};

TEST_P(SignalIsHarmless, WhateverTheProgramDoes) {
  if (tested_build().has_thread_sanitizer() && std::string(GetParam()) == "restart") {
    GTEST_SKIP() << "the sanitizer holds the signal back until the read has returned";
  }
  if (tested_build().has_thread_sanitizer() && std::string(GetParam()) == "descriptors") {
    GTEST_SKIP() << "a program that closes the socket of a thread of cupool's is a race to it";
  }
  const PreloadedRun result =
      run_preloaded(std::string("probe_life_signal mode=") + GetParam(), kOnUsr1);
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_EQ(result.process.err, "");
  const auto reports = by_number(result);
  EXPECT_EQ(reports.count(0), 1u) << "the report at exit";
  EXPECT_GE(reports.size(), 2u);
  uint64_t before = 0;
  for (const auto& [number, report] : reports) {
    if (number == 0) continue;
    EXPECT_GE(mallocs_in(report), before);
    before = mallocs_in(report);
    EXPECT_LE(before, mallocs_in(reports.at(0)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, SignalIsHarmless,
                         testing::Values("busy", "fork", "capture", "descriptors", "restart"),
                         [](const auto& row) { return std::string(row.param); });

TEST(ReportOnSignal, MayComeUntilTheVeryEnd) {
  for (int i = 0; i < often(12); ++i) {
    const PreloadedRun result = run_preloaded("probe_life_signal mode=leaving", kOnUsr1);
    EXPECT_EQ(result.process.exit_code, 0) << result.describe();
    EXPECT_EQ(by_number(result).count(0), 1u) << result.describe();
  }
}

TEST(ReportOnSignal, LeavesTheSignalToAHandlerThatComesLater) {
  const PreloadedRun result = run_preloaded("probe_life_signal mode=own_later", kOnUsr1);
  EXPECT_EQ(result.process.out, run_plain("probe_life_signal mode=own_later",
                                          {{"CUPOOL_STATS_FILE", "/nonexistent/%p.json"}})
                                    .out);
  EXPECT_EQ(result.process.err, "");
  EXPECT_EQ(result.reports.size(), 1u);
}

TEST(ReportOnSignal, LeavesASignalThatIsTakenAndWarnsOnce) {
  for (const char* mode : {"own_before", "ignored"}) {
    const std::string probe = std::string("probe_life_signal mode=") + mode;
    const PreloadedRun result = run_preloaded(probe, kOnUsr1);
    EXPECT_EQ(result.process.exit_code, 0) << result.describe();
    EXPECT_EQ(result.process.out,
              run_plain(probe, {{"CUPOOL_STATS_FILE", "/nonexistent/%p.json"}}).out);
    const size_t first = result.process.err.find("CUPOOL_STATS_SIGNAL");
    EXPECT_NE(first, std::string::npos) << result.describe();
    EXPECT_EQ(result.process.err.find("CUPOOL_STATS_SIGNAL", first + 1), std::string::npos);
    EXPECT_EQ(result.reports.size(), 1u);
  }
}

TEST(ReportOnSignal, CostsAThreadOnlyWhereItIsAskedFor) {
  expect_thread_only_with(kOnUsr1);
}

}  // namespace
}  // namespace preload
