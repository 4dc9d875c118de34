// SPDX-License-Identifier: Apache-2.0
// The pools' start (CUPOOL_POOL_START): no call of the program waits for it, and until then the
// driver serves (docs/design.md, Engine). The background threads' tests have it beside all else.
#include <string>
#include <vector>

#include "harness.h"

namespace preload {
namespace {

const Environment kStartsInBackground = {{"CUPOOL_POOL_START", "background"}};

PreloadedRun expect_same_in_background(const std::string& mode, const Environment& more = {}) {
  return expect_same("probe_pool_start mode=" + mode, 0, 1, with(kStartsInBackground, more));
}

TEST(PoolStart, WhoFreesOnlyInTheEndNeedsNoPool) {
  const PreloadedRun run = expect_same_in_background("few");
  EXPECT_EQ(run.counter("served_passthrough_total"), 30u) << run.describe();
  EXPECT_EQ(run.reports.at(0).at("devices").at(0).at("pool"), nullptr) << run.describe();
}

// The first block of a pool takes the simulated driver a second.
TEST(PoolStart, NoAllocationWaitsForIt) {
  const PreloadedRun run =
      expect_same_in_background("later", {{"CUPOOL_SIM_FIRST_POOL_MS", "1000"}});
  EXPECT_GE(run.counter("served_passthrough_total"), 25u);
  EXPECT_GT(run.counter("served_fresh_total"), 0u);
}

TEST(PoolStart, ALoopWithoutAPauseWaitsForIt) {
  expect_same_in_background("loop", {{"CUPOOL_SIM_FIRST_POOL_MS", "95"}});
}

// Contract 4: on a small device the first blocks of the pools take what is free.
TEST(PoolStart, RefusesNoAllocationMeanwhile) {
  for (const char* first_pool_ms : {"0", "2", "10"}) {
    expect_same_in_background(
        "full", {{"CUPOOL_SIM_FIRST_POOL_MS", first_pool_ms}, {"CUPOOL_SIM_MEMORY", "64M"}});
  }
}

TEST(PoolStart, TheDefaultPoolIsStartedToo) {
  expect_same_in_background("later",
                            {{"CUPOOL_SIM_FIRST_POOL_MS", "1000"}, {"CUPOOL_POOL", "default"}});
}

TEST(PoolStart, EachDeviceHasItsOwn) {
  expect_same_in_background("devices",
                            {{"CUPOOL_SIM_FIRST_POOL_MS", "1000"}, {"CUPOOL_SIM_DEVICES", "2"}});
}

TEST(PoolStart, TheProgramMayEndMeanwhile) {
  expect_same_in_background("leave", {{"CUPOOL_SIM_FIRST_POOL_MS", "300"}});
}

TEST(PoolStart, WithoutAThreadTheProgramsCallsStartThem) {
  expect_same_in_background("no_thread");
}

// Contract 9, I3.
TEST(PoolStart, BreaksNoCaptureThatIsValidWithoutIt) {
  for (const char* first_pool_ms : {"0", "5", "1000"}) {
    expect_same("probe_capture", 0, 1,
                with(kStartsInBackground, {{"CUPOOL_SIM_FIRST_POOL_MS", first_pool_ms}}));
  }
}

class PoolStartAtFirst : public testing::TestWithParam<NamedEnvironment> {};

TEST_P(PoolStartAtFirst, ServesTheFirstAllocation) {
  expect_same("probe_pool_start mode=at_once", 0, 1, with(kStartsInBackground, GetParam().extra));
}

INSTANTIATE_TEST_SUITE_P(
    All, PoolStartAtFirst,
    testing::Values(NamedEnvironment{"First", {{"CUPOOL_POOL_START", "first"}}},
                    NamedEnvironment{"Pool", {{"CUPOOL_BACKEND", "pool"}}},
                    NamedEnvironment{"Plain", {{"CUPOOL_BACKEND", "malloc"}}},
                    NamedEnvironment{"Preallocated", {{"CUPOOL_PREALLOC", "8M"}}},
                    NamedEnvironment{"Bounded", {{"CUPOOL_MAX_SIZE", "64M"}}}),
    [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace preload
