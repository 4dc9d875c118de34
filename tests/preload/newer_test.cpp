// SPDX-License-Identifier: Apache-2.0
// A driver and programs for a later CUDA than 13.0: what came since and the engine has to see is
// hooked; what is newer than that makes cupool step aside when it is called, and not before.
#include "harness.h"

namespace preload {
namespace {

const char* const kRoutes[] = {"query", "dlsym"};

std::string probe(const char* way, const char* route) {
  return std::string("probe_newer way=") + way + " route=" + route;
}

// Contract 2: a free waits for what touches host memory.
TEST(NewerDriver, AFreeWaitsForCopiesAndHostFunctionsOfLaterVersions) {
  for (const char* way : {"linear", "boxes", "host"}) {
    for (const char* route : kRoutes) {
      SCOPED_TRACE(probe(way, route));
      const PreloadedRun result = expect_same(probe(way, route), 0, 1, old_driver("lib-newer"));
      EXPECT_GT(result.counter("free_waits_host_copy_total"), 0u);
      EXPECT_TRUE(result.process.err.empty()) << result.describe();
      const Environment ordered = {{"CUPOOL_FREE_MODE", "ordered"}};
      EXPECT_NE(run_preloaded(probe(way, route), old_driver("lib-newer", ordered)).process.out,
                result.process.out)
          << "nothing to wait for: the test sees nothing";
    }
  }
}

// Contract 9, I3.
TEST(NewerDriver, ACaptureIntoAGraphThatWasCapturedBeforeIsNotHarmed) {
  for (const char* route : kRoutes) {
    SCOPED_TRACE(route);
    expect_same(probe("recapture", route), 0, 1, old_driver("lib-newer"));
  }
}

TEST(NewerDriver, AFunctionThatIsNewerThanCupoolIsCalledAsItIsMeant) {
  for (const char* way : {"version", "kind"}) {
    for (const char* route : kRoutes) {
      SCOPED_TRACE(probe(way, route));
      const ProcessResult plain = run_plain(probe(way, route), old_driver("lib-newer"));
      const PreloadedRun result = run_preloaded(probe(way, route), old_driver("lib-newer"));
      EXPECT_EQ(plain.exit_code, 0) << plain.describe();
      EXPECT_EQ(result.process.exit_code, 0) << result.describe();
      EXPECT_EQ(result.process.out, plain.out);
      EXPECT_GT(result.counter("served_passthrough_total"), 0u);
      const bool version = std::string(way) == "version";
      const char* const called = version ? "cuMemcpyAsync_v9" : "cuMemcpyTomorrowAsync";
      EXPECT_TRUE(contains(result.process.err, std::string(called) + ", which this version"))
          << result.describe();
      EXPECT_EQ(lines_of(result.process.err).size(), 1u) << result.describe();
    }
  }
}

TEST(NewerDriver, AFunctionThatIsNewerThanCupoolChangesNothingUnlessItIsCalled) {
  for (const char* route : kRoutes) {
    SCOPED_TRACE(route);
    const PreloadedRun result =
        expect_same(probe("version", route) + " asked=1", 0, 1,
                    old_driver("lib-newer", {{"CUPOOL_POOL_START", "first"}}));
    EXPECT_EQ(result.counter("served_passthrough_total"), 0u);
    EXPECT_TRUE(result.process.err.empty()) << result.describe();
  }
}

// By the driver's answer alone, which names no exported function.
TEST(NewerDriver, AFunctionWithoutAnExportedNameIsGuardedByItsQuery) {
  const Environment unexported = old_driver("lib-newer", {{"CUPOOL_SIM_UNEXPORTED", "1"}});
  const ProcessResult plain = run_plain(probe("kind", "query"), unexported);
  const PreloadedRun result = run_preloaded(probe("kind", "query"), unexported);
  EXPECT_EQ(result.process.out, plain.out) << result.describe();
  EXPECT_GT(result.counter("served_passthrough_total"), 0u);
  EXPECT_TRUE(contains(result.process.err, "cuMemcpyTomorrowAsync, which this version"))
      << result.describe();
  // A version of a known function cannot be told from the one that cupool knows.
  const PreloadedRun linear = expect_same(probe("linear", "query"), 0, 1, unexported);
  EXPECT_GT(linear.counter("free_waits_host_copy_total"), 0u);
}

// Before the first allocation, too; and names that only look like such functions are none.
TEST(NewerDriver, AFunctionThatIsNewerThanCupoolMayBeTheFirstThatIsCalled) {
  for (const char* route : kRoutes) {
    const std::string early = std::string("probe_newer way=early route=") + route;
    const ProcessResult plain = run_plain(early, old_driver("lib-newer"));
    const PreloadedRun result = run_preloaded(early, old_driver("lib-newer"));
    EXPECT_EQ(result.process.out, plain.out) << result.describe();
    EXPECT_EQ(lines_of(result.process.err).size(), 1u) << result.describe();
    // Where nothing is served, nothing has to stop.
    const PreloadedRun observed =
        run_preloaded(early, old_driver("lib-newer", {{"CUPOOL_MODE", "observe"}}));
    EXPECT_EQ(observed.process.out, plain.out) << observed.describe();
    EXPECT_EQ(observed.process.err, "");
  }
}

}  // namespace
}  // namespace preload
