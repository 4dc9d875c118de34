// SPDX-License-Identifier: Apache-2.0
// Threads of cupool's own beside whatever the program does (docs/design.md, Process): they meet
// contexts that go away, captures, forks and every kind of exit, and nothing is to be seen of them.
#include <cctype>
#include <string_view>

#include "harness.h"

namespace preload {
namespace {

const NamedEnvironment kSeries = {"Series", {{"CUPOOL_STATS_INTERVAL", "1"}}};
const NamedEnvironment kDecay = {"Decay", {{"CUPOOL_DECAY_MS", "4"}}};
const NamedEnvironment kStart = {"Start", {{"CUPOOL_POOL_START", "background"}}};
const NamedEnvironment kAll = {"All",
                               {{"CUPOOL_STATS_INTERVAL", "1"},
                                {"CUPOOL_DECAY_MS", "4"},
                                {"CUPOOL_PREALLOC", "64M,background"}}};

void expect_series_if_asked(const PreloadedRun& result, const Environment& extra) {
  EXPECT_EQ(result.reports.at(0).at("series").is_null(), extra.count("CUPOOL_STATS_INTERVAL") == 0);
}

class BackgroundIsHarmless
    : public testing::TestWithParam<std::tuple<NamedEnvironment, const char*>> {};

TEST_P(BackgroundIsHarmless, WhateverTheProgramDoes) {
  const char* probe = std::get<1>(GetParam());
  if (const char* reason = reason_to_skip(probe)) GTEST_SKIP() << reason;
  const Environment& extra = std::get<0>(GetParam()).extra;
  expect_series_if_asked(expect_same(probe, 0, 1, extra), extra);
}

INSTANTIATE_TEST_SUITE_P(
    Each, BackgroundIsHarmless,
    testing::Combine(testing::Values(kSeries, kStart, kAll),
                     testing::Values("probe_series mode=contexts", "probe_series mode=reset",
                                     "probe_fork mode=busy", "probe_contexts",
                                     "probe_runtime_shared threads=3 iterations=60")),
    [](const auto& row) {
      std::string name = std::string(std::get<0>(row.param).name) + "_" + std::get<1>(row.param);
      for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
      return name;
    });

TEST(BackgroundStart, EndsWithTheProcessHoweverItLeaves) {
  for (const char* mode : {"return", "exit", "_exit", "quick_exit", "thread"}) {
    SCOPED_TRACE(mode);
    expect_same(std::string("probe_exit mode=") + mode, 7, 1,
                with(kStart.extra, {{"CUPOOL_SIM_FIRST_POOL_MS", "20"}}));
  }
}

class Background : public testing::TestWithParam<NamedEnvironment> {};

// I3.
TEST_P(Background, BreaksNoCapture) {
  const ProcessResult without = run_plain("probe_capture");
  for (int i = 0; i < 5; ++i) {
    const PreloadedRun with = run_preloaded("probe_capture", GetParam().extra);
    EXPECT_EQ(with.process.out, without.out) << with.describe();
    EXPECT_EQ(with.process.exit_code, without.exit_code);
  }
}

TEST_P(Background, EndsWithTheProcessHoweverItLeaves) {
  for (const char* mode : {"return", "exit", "_exit", "quick_exit", "thread"}) {
    SCOPED_TRACE(mode);
    const std::string probe = std::string("probe_exit mode=") + mode;
    expect_series_if_asked(expect_same(probe, 7, 1, GetParam().extra), GetParam().extra);
  }
}

INSTANTIATE_TEST_SUITE_P(Each, Background, testing::Values(kSeries, kDecay),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace preload
