// SPDX-License-Identifier: Apache-2.0
// The four routes by which programs reach us (docs/design.md, Routes): the same results as without
// the preload, and every call counted exactly once.
#include "harness.h"

namespace preload {
namespace {

class Route : public testing::TestWithParam<const char*> {};

TEST_P(Route, GivesTheSameResultsAndCountsEveryCallOnce) {
  const PreloadedRun result = expect_same(GetParam());
  expect_counts(result);
  EXPECT_GT(
      result.counter("served_thread_cache_total") + result.counter("served_shared_cache_total"), 0u)
      << "nothing was served from a cache: the route was not used";
}

// Whether the GPU runs its work late, early or in real time must not matter to a program.
TEST_P(Route, IsRightWhateverTheGpusPace) {
  for (const char* mode : {"late", "early", "timed"}) {
    SCOPED_TRACE(mode);
    expect_same(GetParam(), 0, 1, {{"CUPOOL_SIM_MODE", mode}});
  }
}

// A driver that gives out functions at addresses without an exported name.
TEST_P(Route, KnowsFunctionsThatAreNotExportedByTheirQuery) {
  const PreloadedRun result = expect_same(GetParam(), 0, 1, {{"CUPOOL_SIM_UNEXPORTED", "1"}});
  expect_counts(result);
  EXPECT_GT(
      result.counter("served_thread_cache_total") + result.counter("served_shared_cache_total"),
      0u);
}

TEST_P(Route, IsUntouchedWhenDisabled) {
  const PreloadedRun result = expect_same(GetParam(), 0, 0, {{"CUPOOL_ENABLE", "0"}});
  EXPECT_TRUE(result.process.err.empty());
}

INSTANTIATE_TEST_SUITE_P(All, Route,
                         testing::Values("probe_runtime_shared", "probe_runtime_static",
                                         "probe_runtime_shared iterations=30 threads=4",
                                         "probe_runtime_static iterations=30 threads=4",
                                         "probe_driver_linked", "probe_dlsym", "probe_getproc",
                                         "probe_getproc resolver=v1", "probe_plugin",
                                         "probe_plugin reload=1"),
                         [](const auto& row) {
                           std::string name = row.param;
                           for (char& c : name) c = c == ' ' || c == '=' ? '_' : c;
                           return name;
                         });

// Route 3: the real resolver is asked first, and what it answered stands.
TEST(Resolver, AnswersAsTheDriversOwn) {
  for (const char* unexported : {"0", "1"}) {
    expect_same("probe_getproc mode=answers", 0, 0, {{"CUPOOL_SIM_UNEXPORTED", unexported}});
  }
}

// Calls of code that is made at run time, whose caller is no object of the process: with a runtime
// that all see, and with one that only the library sees that brought it.
TEST(Caller, MayBeNoObject) {
  for (const char* way : {"runtime=global", "runtime=local", "runtime=local host=1"}) {
    const PreloadedRun result = expect_same(std::string("probe_made_at_run_time ") + way);
    expect_counts(result);
    EXPECT_GT(
        result.counter("served_thread_cache_total") + result.counter("served_shared_cache_total"),
        0u)
        << result.describe();
  }
}

// The loader has one lock for its list of libraries and one for changes of it.
TEST(Caller, MayBeNewWhileLibrariesAreLoaded) {
  expect_same("probe_made_at_run_time runtime=local beside=1");
}

// What a weak reference finds without a runtime answers as a runtime that cannot start.
TEST(Caller, MayHaveNoRuntime) {
  EXPECT_EQ(run_plain("probe_made_at_run_time runtime=none").out, "no runtime\n");
  const PreloadedRun result = run_preloaded("probe_made_at_run_time runtime=none");
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_EQ(result.process.out, "malloc 3 3 pitch 3 3d 3 free 3 host 3 3 3 synchronize 3\n")
      << result.describe();
  EXPECT_EQ(result.process.err, "");
}

}  // namespace
}  // namespace preload
