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
  expect_same("probe_getproc mode=answers", 0, 0);
}

}  // namespace
}  // namespace preload
