// SPDX-License-Identifier: Apache-2.0
// Idle memory: what goes back to the device after CUPOOL_DECAY_MS and what does not, and what
// CUPOOL_PREALLOC reserves in the background (docs/design.md, Engine).
#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "harness.h"

namespace preload {
namespace {

uint64_t reserved_at_exit(const PreloadedRun& result) {
  return result.reports.at(0).at("devices").at(0).at("pool").at("reserved_current_bytes");
}

constexpr uint64_t kMuch = uint64_t{384} << 20;  // of probe_idle's large blocks

TEST(Decay, WhatNobodyNeedsGoesBackToTheDevice) {
  for (const char* mode : {"leave", "thread"}) {
    const PreloadedRun result =
        expect_same(std::string("probe_idle mode=") + mode, 0, 1, {{"CUPOOL_DECAY_MS", "40"}});
    EXPECT_GE(result.counter("returned_bytes_total"), kMuch) << result.describe();
    EXPECT_GE(result.counter("trims_total"), kMuch / (64 << 20)) << "in slices";
  }
}

TEST(Decay, WhatIsNeededAgainStays) {
  expect_same("probe_idle mode=pairs", 0, 1, {{"CUPOOL_DECAY_MS", "1s"}});
}

// Blocks come back without a fence there, but leave after one only. The program goes on for less
// than two spans.
TEST(Decay, WhatWasFreedInALaneGoesBackAsSoon) {
  const PreloadedRun result = run_preloaded(
      "probe_idle mode=lane",
      {{"CUPOOL_DECAY_MS", "2s"}, {"CUPOOL_LANE", "1"}, {"CUPOOL_SIM_MODE", "early"}});
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_TRUE(result.reports.at(0).at("process").at("lane").at("end").is_null())
      << result.describe();
  EXPECT_GE(result.counter("returned_bytes_total"), kMuch - (uint64_t{64} << 20));
}

// Without a setting.
TEST(Decay, IsOnByDefault) {
  const PreloadedRun result =
      expect_same("probe_idle mode=leave", 0, 1, {{"CUPOOL_SIM_MODE", "early"}});
  EXPECT_GE(result.counter("returned_bytes_total"), kMuch) << result.describe();
}

// Its span is the longest that there is, but hardly any memory is free.
TEST(Decay, HurriesWhereTheDeviceIsNearlyFull) {
  const Environment day = {{"CUPOOL_DECAY_MS", "86400000"}, {"CUPOOL_SIM_MODE", "early"}};
  const PreloadedRun result =
      expect_same("probe_idle mode=crowded", 0, 1, with(day, {{"CUPOOL_SIM_MEMORY", "460M"}}));
  EXPECT_LT(result.process.seconds, 10.0);
  EXPECT_EQ(expect_same("probe_idle mode=stay", 0, 1, day).counter("returned_bytes_total"), 0u);
}

TEST(Decay, HasItsThreadOnlyWithPools) {
  const std::string probe = "probe_life_signal mode=tasks";
  const std::string plain = run_plain(probe).out;
  EXPECT_EQ(run_preloaded(probe, {{"CUPOOL_BACKEND", "malloc"}}).process.out, plain);
  EXPECT_NE(run_preloaded(probe, {{"CUPOOL_POOL_START", "first"}}).process.out, plain);
}

TEST(Decay, WithoutItIdleMemoryStays) {
  const PreloadedRun result = expect_same("probe_idle mode=stay", 0, 1, {{"CUPOOL_DECAY_MS", "0"}});
  EXPECT_EQ(result.counter("returned_bytes_total"), 0u);
  EXPECT_GE(reserved_at_exit(result), kMuch);
}

TEST(Decay, WhatIsPreallocatedStays) {
  const PreloadedRun result = expect_same("probe_idle mode=stay", 0, 1,
                                          {{"CUPOOL_DECAY_MS", "20"}, {"CUPOOL_PREALLOC", "256M"}});
  EXPECT_GE(result.counter("returned_bytes_total"), kMuch);
  EXPECT_GE(reserved_at_exit(result), uint64_t{256} << 20);
  EXPECT_LT(reserved_at_exit(result), kMuch);
}

// Its return would wait for the GPU, as cuMemFree does.
TEST(Decay, PlainMemoryStays) {
  const PreloadedRun result = expect_same(
      "probe_idle mode=stay", 0, 1, {{"CUPOOL_DECAY_MS", "20"}, {"CUPOOL_BACKEND", "malloc"}});
  EXPECT_EQ(result.counter("returned_bytes_total"), 0u);
}

// The program may be given its addresses, and what it does to them is not ours to answer.
TEST(Decay, TheDefaultPoolIsTheProgramsToTrim) {
  const PreloadedRun result = expect_same("probe_idle mode=stay", 0, 1,
                                          {{"CUPOOL_DECAY_MS", "20"}, {"CUPOOL_POOL", "default"}});
  EXPECT_EQ(result.counter("returned_bytes_total"), 0u);
  EXPECT_EQ(result.counter("trims_total"), 0u);
}

// What the second half of the requests needed, on a GPU that takes its time for work.
struct Needed {
  uint64_t grown = 0;
  uint64_t waits = 0;
};

Needed needed_by_requests(Environment environment) {
  environment["CUPOOL_SIM_MODE"] = "timed";
  const PreloadedRun result = run_preloaded("probe_idle mode=requests", environment);
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  Needed needed;
  EXPECT_EQ(std::sscanf(result.process.err.c_str(), "grown %" SCNu64 " waits %" SCNu64 "\n",
                        &needed.grown, &needed.waits),
            2)
      << result.describe();
  return needed;
}

// Hardly: a class may have its busiest moment late. A bound on what is pending makes the
// difference; in one lane nothing is.
TEST(RealtimeProfile, HardlyHasASlowCaseAfterTheWarmUp) {
  const Needed profiled = needed_by_requests(
      {{"CUPOOL_LANE", "0"}, {"CUPOOL_PROFILE", CUPOOL_TEST_SOURCE_FOLDER "/config/realtime.env"}});
  const Needed bounded = needed_by_requests({{"CUPOOL_LANE", "0"}, {"CUPOOL_MAX_PENDING", "4M"}});
  EXPECT_EQ(profiled.waits, 0u);
  EXPECT_GT(bounded.waits, 0u);
  EXPECT_LT(profiled.grown, bounded.grown / 100);
}

// Half of what the program uses, and at least 256 MiB, on a device of which 2 % are more.
TEST(PendingLimit, FollowsThePeakAndIsInTheReport) {
  const PreloadedRun result =
      expect_same("probe_idle mode=stay", 0, 1, {{"CUPOOL_SIM_MEMORY", "16G"}});
  const auto& gauges = result.reports.at(0).at("devices").at(0).at("gauges");
  const uint64_t peak = gauges.at("application_bytes").at("peak");
  EXPECT_EQ(gauges.at("pending_limit_bytes").at("current"),
            std::max(peak / 2, uint64_t{256} << 20));
  const PreloadedRun set =
      expect_same("probe_idle mode=stay", 0, 1, {{"CUPOOL_MAX_PENDING", "3M"}});
  EXPECT_EQ(
      set.reports.at(0).at("devices").at(0).at("gauges").at("pending_limit_bytes").at("current"),
      3 << 20);
}

const Environment kInBackground = {{"CUPOOL_PREALLOC", "512M,background"}};

TEST(PreallocationInBackground, ReservesAsMuchAsItIsTold) {
  const PreloadedRun result = expect_same("probe_idle mode=reserved", 0, 1, kInBackground);
  EXPECT_GE(reserved_at_exit(result), uint64_t{512} << 20);
  EXPECT_LE(reserved_at_exit(result), uint64_t{640} << 20) << "and not much more";
}

// Contract 4: what is just being reserved is no memory that the program lacks (its own
// allocations are in tests/contract; these are others').
TEST(PreallocationInBackground, IsThereForOtherAllocators) {
  for (int i = 0; i < 3; ++i) {
    expect_same("probe_oom mode=others", 0, 1,
                {{"CUPOOL_SIM_MEMORY", "1G"}, {"CUPOOL_PREALLOC", "50%,background"}});
  }
}

}  // namespace
}  // namespace preload
