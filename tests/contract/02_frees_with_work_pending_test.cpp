// SPDX-License-Identifier: Apache-2.0
// Contract 2: a free with GPU work pending waits neither for what the program has waited for itself
// nor for more than it has to, and what cupool does with a stream harms nobody.
#include "harness.h"

namespace preload {
namespace {

// Contract 2: the program has waited for its copies itself, so no free asks for them, and each
// shares its fence with others.
TEST(PendingWork, FreesAfterTheProgramsOwnWaitAskTheDriverNothing) {
  for (const char* kind : {"shared", "static"}) {
    SCOPED_TRACE(kind);
    const ScratchFolder folder;
    const std::string calls = folder.path() + "/calls";
    expect_same(std::string("probe_runtime_") + kind + " copies=400", 0, 1,
                {{"CUPOOL_SIM_CALLS", calls}});
    std::map<std::string, uint64_t> count = calls_in(calls);
    EXPECT_EQ(count["cuMemcpyDtoHAsync_v2"] + count["cuMemcpyAsync"], 400u);
    EXPECT_GE(count["cuEventRecord"], 400u) << "behind the copies";
    EXPECT_LE(count["cuEventRecord"], 464u) << "and until the main stream is known";
    EXPECT_LT(count["cuCtxRecordEvent"], 40u);
    EXPECT_LT(count["cuEventQuery"], 80u);
  }
}

// The program's own wait for the legacy stream is one for the whole context, and its frees need no
// fence; but for non-blocking streams, which it does not wait for. In a lane, looks
// for work that nobody saw come besides, ten a second at most.
TEST(PendingWork, FreesBeforeAWaitForTheLegacyStreamNeedNoFence) {
  constexpr const char* kWays[][2] = {{"none", "0"},         {"none", "1"},
                                      {"blocking", "0"},     {"blocking", "1"},
                                      {"non_blocking", "0"}, {"non_blocking", "1"}};
  for (const char* kind : {"shared", "static"}) {
    for (const auto& way : kWays) {
      const std::string other = way[0];
      const std::string lane = way[1];
      SCOPED_TRACE(std::string(kind) + ", " + other + ", lane " + lane);
      const ScratchFolder folder;
      const std::string calls = folder.path() + "/calls";
      const PreloadedRun run =
          expect_same(std::string("probe_runtime_") + kind + " legacy=1200 other=" + other, 0, 1,
                      {{"CUPOOL_SIM_CALLS", calls}, {"CUPOOL_LANE", lane}});
      std::map<std::string, uint64_t> count = calls_in(calls);
      const uint64_t fences = run.counter("fences_total");
      const auto looks = lane == "0" ? 0 : static_cast<uint64_t>(run.process.seconds * 10);
      if (lane == "0") {
        EXPECT_LE(count["cuEventRecord"] + count["cuCtxRecordEvent"],
                  run.counter("free_calls_total") + fences)
            << "a point at most for each free";
      }
      if (other == "non_blocking") {
        EXPECT_GE(fences, 7u) << "one for each full batch";
      } else {
        EXPECT_LT(fences, 5u + looks) << "in the beginning, before there are blocks enough";
      }
    }
  }
}

// Contract 2: what cupool does with a stream after the driver's call is done before another thread
// destroys it, in the first use of the GPU as well.
TEST(PendingWork, AStreamMayBeDestroyedWhenItsCallbackIsSeen) {
  expect_same("probe_callback", 0, 1,
              {{"CUPOOL_SIM_MODE", "early"}, {"CUPOOL_SIM_RETURN_MS", "50"}});
}

// Contract 2: a free waits for work that the freeing thread has seen, though the call that submits
// it has not returned.
constexpr const char* kFreesBesideACallback[] = {
    "probe_callback free=function", "probe_callback free=callback", "probe_callback free=first"};
const Environment kCallbackReturnsLate = {
    {"CUPOOL_POOL_START", "first"}, {"CUPOOL_SIM_MODE", "timed"}, {"CUPOOL_SIM_RETURN_MS", "100"}};

TEST(PendingWork, ACallbackIsWaitedForBeforeItsCallReturns) {
  for (const char* probe : kFreesBesideACallback) {
    SCOPED_TRACE(probe);
    expect_same(probe, 0, 1, kCallbackReturnsLate);
  }
}

TEST(PendingWorkMutation, AForgottenCallUnderWayIsFound) {
  if (!tested_build().sanitizer.empty()) GTEST_SKIP() << "no such engine with a sanitizer";
  Environment environment =
      with(kCallbackReturnsLate,
           {{"CUPOOL_TEST_MUTATION", "forgets-calls-under-way"},
            {"CUPOOL_STATS", "off"},
            {"LD_PRELOAD", tested_build().folder + "/tests/libcupool_mutable.so"}});
  for (const char* probe : kFreesBesideACallback) {
    const ProcessResult run = run_plain(probe, environment);
    EXPECT_NE(run.out.find("done=0"), std::string::npos) << run.describe();
  }
}

}  // namespace
}  // namespace preload
