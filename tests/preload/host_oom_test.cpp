// SPDX-License-Identifier: Apache-2.0
// Host memory that runs out within the library: one request of it fails, or all from one on. What
// the program is answered stays, and it goes on (docs/design.md, Fail open).
#include "harness.h"

namespace preload {
namespace {

// The program ends as without cupool and within its limit of time, whichever request fails.
void expect_no_harm(const std::string& when, const std::vector<const char*>& how,
                    const Environment& settings = {}) {
  if (tested_build().has_memory_sanitizer() || tested_build().has_thread_sanitizer()) {
    GTEST_SKIP() << "the heap is the sanitizer's";
  }
  const Environment environment = with(settings, {{"CUPOOL_POOL_START", "first"},
                                                  {"CUPOOL_DECAY_MS", "40"},
                                                  {"CUPOOL_STATS", "off"},
                                                  {"CUPOOL_SIM_MEMORY", "1G"}});
  const std::string probe = "probe_host_oom when=" + when;
  const ProcessResult plain = run_plain(probe, environment);
  bool any = false;
  bool more = true;
  for (int n = 1; more; ++n) {
    for (const char* all : how) {
      const ProcessResult run =
          run_with_library(probe + " n=" + std::to_string(n) + all, environment);
      ASSERT_FALSE(run.timed_out) << n << all << run.describe();
      EXPECT_EQ(run.exit_code, 0) << n << all << run.describe();
      EXPECT_EQ(run.out, plain.out) << n << all << run.describe();
      const std::size_t said = run.err.rfind("requests ");
      ASSERT_NE(said, std::string::npos) << run.describe();
      const int requests = std::atoi(run.err.c_str() + said + 9);
      any = any || requests >= n;
      more = requests >= n;
    }
  }
  EXPECT_TRUE(any);
}

TEST(HostMemoryRunsOut, BeforeTheFirstCall) {
  expect_no_harm("first", {" all=0", " all=1"});
}
TEST(HostMemoryRunsOut, AtTheStart) {
  expect_no_harm("start", {" all=0", " all=1"});
}
TEST(HostMemoryRunsOut, BesideAllocationsAndFrees) {
  expect_no_harm("later", {" all=0", " all=1"});
}
TEST(HostMemoryRunsOut, WhileIdleMemoryGoesBack) {
  expect_no_harm("idle", {" all=0", " all=1"});
}
TEST(HostMemoryRunsOut, InCallsThatRunOutOfDeviceMemory) {
  expect_no_harm("refused", {" all=0", " all=1"});
}
TEST(HostMemoryRunsOut, WhileContextsEnd) {
  expect_no_harm("contexts", {" all=0", " all=1"});
}
TEST(HostMemoryRunsOut, WhileThreadsEnd) {
  expect_no_harm("threads", {" all=0", " all=1"});
}
TEST(HostMemoryRunsOut, BesideCaptures) {
  expect_no_harm("captures", {" all=0", " all=1"});
}
TEST(HostMemoryRunsOut, InCallsForOtherMemory) {
  expect_no_harm("host", {" all=0", " all=1"});
}
// Its first page-locked block comes before any of a pool.
TEST(HostMemoryRunsOut, InCallsForOtherMemoryBesidePlainMemory) {
  expect_no_harm("host", {" all=0", " all=1"},
                 {{"CUPOOL_BACKEND", "malloc"}, {"CUPOOL_FREE_MODE", "ordered"}});
}
TEST(HostMemoryRunsOut, WhileCallsAreObserved) {
  for (const char* when : {"later", "captures"}) {
    expect_no_harm(when, {" all=0", " all=1"}, {{"CUPOOL_MODE", "observe"}});
  }
}

}  // namespace
}  // namespace preload
