// SPDX-License-Identifier: Apache-2.0
// Contract 13: programs that do not use CUDA, or cannot: no output, no driver loaded, and every
// symbol query answered as without us.
#include "harness.h"

namespace preload {
namespace {

// Contract 13: no driver, no device: the same errors, no word, no report.
TEST(NoDriver, GivesTheSameErrors) {
  expect_same("probe_no_driver", 0, 0,
              {{"LD_LIBRARY_PATH", tested_build().folder + "/tests/preload/lib-no-driver"}});
}

TEST(NoDevice, GivesTheSameErrors) {
  expect_same("probe_no_driver", 0, 0, {{"CUPOOL_SIM_DEVICES", "0"}});
}

// Route 2 and contract 13: queries that are not ours keep their meaning, the caller's included.
TEST(SymbolQueries, KeepTheirMeaning) {
  expect_same("probe_queries", 0, 0);
}

TEST(SymbolQueries, KeepTheirMeaningWhenDisabled) {
  expect_same("probe_queries", 0, 0, {{"CUPOOL_ENABLE", "0"}});
}

TEST(WithoutCuda, ThereIsNoReport) {
  const PreloadedRun result = run_preloaded("probe_queries");
  EXPECT_TRUE(result.reports.empty());
  EXPECT_EQ(result.process.err, "");
}

// Contract 13: a process without CUDA says nothing, however wrong its environment.
TEST(WithoutCuda, WarningsNeedAUserOfTheGpu) {
  const PreloadedRun result = run_preloaded("probe_queries", {{"CUPOOL_FREE_MOED", "sync"}});
  EXPECT_EQ(result.process.err, "");
}

}  // namespace
}  // namespace preload
