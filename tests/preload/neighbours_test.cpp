// SPDX-License-Identifier: Apache-2.0
// Processes on one device that fit there together without cupool (docs/design.md, Neighbours): one
// that runs out of memory gets what lies idle in another, and neither waits long nor is harmed.
#include "harness.h"

namespace preload {
namespace {

// Idle memory stays for as long as a test takes, unless a neighbour asks.
Environment shared_device(const ScratchFolder& folder, const Environment& more = {}) {
  return with({{"CUPOOL_SIM_SHARED", folder.path() + "/device"},
               {"CUPOOL_SIM_MEMORY", "512M"},
               {"CUPOOL_POOL_START", "first"},
               {"CUPOOL_DECAY_MS", "60min"}},
              more);
}

PreloadedRun run_scene(const std::string& arguments, const Environment& more = {}) {
  const ScratchFolder folder;
  PreloadedRun result = run_preloaded("probe_neighbours " + arguments, shared_device(folder, more));
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_EQ(result.process.err, "");
  for (const nlohmann::json& report : result.reports) expect_identity(report);
  return result;
}

constexpr uint64_t kMiB = 1 << 20;

TEST(Neighbours, GiveBackWhatLiesIdleToOneThatLacksIt) {
  const ScratchFolder folder;
  const ProcessResult plain = run_plain("probe_neighbours", shared_device(folder));
  const PreloadedRun result = run_scene("");
  EXPECT_EQ(plain.out, "asker 0\nin time 1\ndone\n") << plain.describe();
  EXPECT_EQ(result.process.out, plain.out) << result.describe();
  EXPECT_GT(result.counter("neighbours_asked_total"), 0u);
  EXPECT_GE(result.counter("given_to_neighbours_bytes_total"), 128 * kMiB);
  EXPECT_GT(result.counter("oom_rescues_total"), 0u);
}

TEST(Neighbours, GiveWhenTheDriverServedFirst) {
  const PreloadedRun result = run_scene("", {{"CUPOOL_POOL_START", "background"}});
  EXPECT_EQ(result.process.out, "asker 0\nin time 1\ndone\n") << result.describe();
}

// Contract 12.
TEST(Neighbours, GiveBackWhatLiesIdleInTheDefaultPool) {
  for (const char* backend : {"auto", "malloc"}) {
    const PreloadedRun result = run_scene("holder=async", {{"CUPOOL_BACKEND", backend}});
    EXPECT_EQ(result.process.out, "asker 0\nin time 1\ndone\n") << result.describe();
    EXPECT_GE(result.counter("given_to_neighbours_bytes_total"), 128 * kMiB) << backend;
  }
}

// Contract 12, whether or not the default pool is kept: with a threshold of 0 it is the program's.
TEST(Neighbours, GiveBackWhatLiesIdleInStreams) {
  for (const char* threshold : {"100%", "0"}) {
    for (const char* backend : {"auto", "malloc"}) {
      SCOPED_TRACE(std::string(threshold) + ", " + backend);
      const PreloadedRun result =
          run_scene("holder=served", {{"CUPOOL_BACKEND", backend},
                                      {"CUPOOL_ASYNC", "serve"},
                                      {"CUPOOL_RELEASE_THRESHOLD", threshold}});
      EXPECT_EQ(result.process.out, "asker 0\nin time 1\ndone\n") << result.describe();
      EXPECT_GE(result.counter("given_to_neighbours_bytes_total"), 128 * kMiB);
    }
  }
}

// Contract 10: the pools outlive the context.
TEST(Neighbours, FindNothingTakenByOneWhoseContextsHaveEnded) {
  const PreloadedRun result = run_scene("holder=reset");
  EXPECT_EQ(result.process.out, "asker 0\nin time 1\ndone\n") << result.describe();
  EXPECT_EQ(result.counter("given_to_neighbours_bytes_total"), 0u);
}

// The engine has not started, or knows no context yet.
TEST(Neighbours, AreAskedByWhateverNeedsMemoryFirst) {
  for (const char* by : {"async", "managed"}) {
    const PreloadedRun result = run_scene(std::string("by=") + by);
    EXPECT_EQ(result.process.out, "asker 0\ndone\n") << by << result.describe();
  }
  const PreloadedRun result = run_scene("asks=CUPOOL_SIM_FAIL:cuDevicePrimaryCtxRetain:1=2");
  EXPECT_EQ(result.process.out, "asker 0\nin time 1\ndone\n") << result.describe();
}

// Whatever the order in which they are found.
TEST(Neighbours, AreAllAskedHoweverManyThereAre) {
  for (const char* strangers : {"strangers=500", "strangers=300 mute=1"}) {
    const PreloadedRun result = run_scene(strangers);
    EXPECT_EQ(result.process.out, "asker 0\nin time 1\ndone\n") << result.describe();
    EXPECT_GE(result.counter("given_to_neighbours_bytes_total"), 128 * kMiB);
  }
}

TEST(Neighbours, OfOneAnotherMayAskAtTheSameTime) {
  const PreloadedRun result = run_scene("scene=mutual mib=150");
  EXPECT_EQ(result.process.out, "failed 0\nfailed 0\ndone\n") << result.describe();
}

TEST(Neighbours, AreAskedAgainWhileTheyUseWhatIsLacking) {
  // With another one that does not answer, too.
  for (const char* strangers : {"", " strangers=1 mute=1"}) {
    const PreloadedRun result = run_scene(std::string("holder=busy") + strangers);
    EXPECT_EQ(result.process.out, "asker 0\nin time 1\ndone\n") << result.describe();
    EXPECT_GT(result.counter("given_to_neighbours_bytes_total"), 0u);
  }
}

// A thread that runs out of memory just after another one waits with it.
TEST(Neighbours, AreWaitedForByEachThreadThatLacksMemory) {
  const PreloadedRun result = run_scene("holder=busy threads=4");
  EXPECT_EQ(result.process.out, "asker 0\nin time 1\ndone\n") << result.describe();
}

// What was reserved on the user's word stays: the asker is refused, as it was before.
TEST(Neighbours, KeepWhatIsPreallocated) {
  const PreloadedRun result = run_scene("a=CUPOOL_PREALLOC:256M");
  EXPECT_EQ(result.process.out, "asker 2\nin time 1\ndone\n") << result.describe();
  EXPECT_LE(result.counter("given_to_neighbours_bytes_total"), 128 * kMiB);
}

TEST(Neighbours, KeepEverythingIfMemoryIsToStay) {
  for (const char* variable : {"CUPOOL_DECAY_MS:0", "CUPOOL_POOL:default"}) {
    const PreloadedRun result = run_scene(std::string("a=") + variable);
    EXPECT_EQ(result.counter("given_to_neighbours_bytes_total"), 0u);
  }
}

// Contract 9.
TEST(Neighbours, GiveNothingDuringACapture) {
  const PreloadedRun result = run_scene("holder=capture");
  EXPECT_EQ(result.process.out, "asker 2\nin time 1\ncapture 0\ndone\n") << result.describe();
  EXPECT_EQ(result.counter("given_to_neighbours_bytes_total"), 0u);
}

// Contract 11.
TEST(Neighbours, ThatAreStoppedCostAMomentAndNothingElse) {
  const PreloadedRun result = run_scene("holder=stop");
  EXPECT_EQ(result.process.out, "asker 2\nin time 1\ndone\n") << result.describe();
}
TEST(Neighbours, MayEndMeanwhile) {
  const PreloadedRun result = run_scene("holder=leave patience_ms=3000");
  EXPECT_EQ(result.process.out, "asker 0\nin time 1\ndone\n") << result.describe();
}
TEST(Neighbours, ThatForkKeepTheirSocketToThemselves) {
  const PreloadedRun result = run_scene("holder=fork");
  EXPECT_EQ(result.process.out, "sockets of the child 0\nasker 0\nin time 1\ndone\n")
      << result.describe();
}
// One large request, so that the device never gets so full that decay gives the memory back first.
TEST(Neighbours, ThatLoseTheirSocketGetANewOne) {
  if (tested_build().has_thread_sanitizer()) GTEST_SKIP() << "closing a thread's socket is a race";
  const PreloadedRun result = run_scene("holder=close block_mib=320 patience_ms=5000");
  EXPECT_EQ(result.process.out, "asker 0\nin time 1\ndone\n") << result.describe();
  EXPECT_GT(result.counter("given_to_neighbours_bytes_total"), 0u);
}

TEST(Neighbours, AnswerInTimeWhoeverElseConnects) {
  const PreloadedRun result = run_scene("holder=pestered");
  EXPECT_EQ(result.process.out, "asker 0\nin time 1\ndone\n") << result.describe();
}

// The driver's own memory on another device, or that of a program without cupool, is not asked for.
TEST(Neighbours, OnOtherDevicesAreLeftAlone) {
  const PreloadedRun result = run_scene("", {{"CUPOOL_SIM_SHARED", ""}});
  EXPECT_EQ(result.process.out, "asker 0\nin time 1\ndone\n") << result.describe();
  EXPECT_EQ(result.counter("given_to_neighbours_bytes_total"), 0u);
}

}  // namespace
}  // namespace preload
