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

// The program stands before cupool in the search order: what it defines itself it finds, and what
// comes next is nothing.
TEST(SymbolQueries, FindTheProgramsOwnFunctions) {
  const PreloadedRun result = expect_same("probe_own_names", 0, 0);
  EXPECT_FALSE(contains(result.process.out, "null: 0")) << result.describe();
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

// Contract 13: hooks that a program is linked to are called all the same, and hand on what they are
// given. In a process that only allocates in the end there is no engine either, until then.
class Disabled : public testing::TestWithParam<const char*> {};

TEST_P(Disabled, EachCallIsTheDrivers) {
  const PreloadedRun result = expect_same(GetParam(), 0, 0, {{"CUPOOL_ENABLE", "0"}});
  EXPECT_EQ(result.process.err, "");
}

INSTANTIATE_TEST_SUITE_P(
    All, Disabled,
    testing::Values("probe_host_memory case=seen", "probe_host_memory case=pairs rounds=10",
                    "probe_other_memory", "probe_pointer_queries", "probe_graph_nodes",
                    "probe_capture_modes", "probe_contexts mode=contexts",
                    "probe_contexts mode=primary", "probe_contexts mode=handles",
                    "probe_outside mode=descriptor", "probe_outside mode=attribute",
                    "probe_step_aside", "probe_mpi send", "probe_mpi found_next", "probe_mpi names",
                    "probe_pitch", "probe_host_side case=callback", "probe_host_side case=managed",
                    "probe_errors route=driver", "probe_errors route=runtime",
                    "probe_default_pool mode=info", "probe_linked"),
    [](const auto& row) { return std::to_string(row.index) + name_of(row.param); });

// The same calls, of a process whose engine starts and serves.
TEST(Linked, EachCallIsAnsweredAsByTheDriver) {
  expect_same("probe_linked");
  expect_same("probe_linked", 0, 1, {{"CUPOOL_FREE_MODE", "sync"}});
  expect_same("probe_linked", 0, 1, {{"CUPOOL_MODE", "observe"}});
  expect_same("probe_linked", 0, 1, {{"CUPOOL_ASYNC", "serve"}});
}

}  // namespace
}  // namespace preload
