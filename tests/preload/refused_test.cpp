// SPDX-License-Identifier: Apache-2.0
// What a call that runs out of memory does to the memory that lies idle (contract 4): nothing where
// that memory cannot be the cause, and no other thread's call waits for it.
#include "harness.h"

namespace preload {
namespace {

const Environment kIdleStays = {{"CUPOOL_SIM_MEMORY", "1G"},
                                {"CUPOOL_POOL_START", "first"},
                                {"CUPOOL_RELEASE_THRESHOLD", "100%"},
                                {"CUPOOL_DECAY_MS", "0"}};

void expect_nothing_given_back(const PreloadedRun& run) {
  EXPECT_EQ(run.counter("returned_bytes_total"), 0u) << run.describe();
  EXPECT_EQ(run.counter("trims_total"), 0u);
  EXPECT_EQ(run.counter("neighbours_asked_total"), 0u);
}

TEST(Refused, ByTheLimitOfAPoolNothingIdleGoesBack) {
  for (const char* current : {"0", "1"}) {
    for (const char* async : {"threshold", "serve"}) {
      SCOPED_TRACE(std::string(current) + ", " + async);
      const PreloadedRun run =
          expect_same(std::string("probe_refused case=bounded idle=400 current=") + current, 0, 1,
                      with(kIdleStays, {{"CUPOOL_ASYNC", async}}));
      EXPECT_EQ(run.process.out, "served 32\nrefused 8\n");
      expect_nothing_given_back(run);
    }
  }
}

TEST(Refused, ByALimitThatMemoryHasWhatIsIdleGoesBack) {
  for (const char* current : {"0", "1"}) {
    const PreloadedRun run =
        expect_same(std::string("probe_refused case=bounded idle=920 block=200 current=") + current,
                    0, 1, kIdleStays);
    EXPECT_EQ(run.process.out, "served 1\nrefused 39\n");
    EXPECT_GT(run.counter("oom_rescues_total"), 0u);
  }
}

TEST(Refused, InAStreamOfALargerDeviceWhatIsIdleThereGoesBack) {
  const PreloadedRun run = expect_same(
      "probe_refused case=small", 0, 1,
      with(kIdleStays, {{"CUPOOL_SIM_DEVICES", "2"}, {"CUPOOL_SIM_MEMORY", "256M,1G"}}));
  EXPECT_EQ(run.process.out, "in the stream 0\n");
}

// Of the device such calls take page tables at most.
TEST(Refused, ForLackOfHostMemoryNothingIdleGoesBack) {
  const PreloadedRun run = expect_same(
      "probe_refused case=pinned", 0, 1,
      with(kIdleStays,
           {{"CUPOOL_SIM_FAIL", "cuMemHostAlloc:*=2,cuMemHostRegister:*=2,cuMemCreate:*=2"}}));
  EXPECT_EQ(lines_of(run.process.out).size(), 9u);
  EXPECT_FALSE(contains(run.process.out, " 0\n")) << run.describe();
  expect_nothing_given_back(run);
}

// Contract 4.
TEST(Refused, ForLackOfPageTablesWhatIsIdleGoesBack) {
  const PreloadedRun run = run_preloaded(
      "probe_refused case=page_tables",
      with(kIdleStays, {{"CUPOOL_SIM_MEMORY", "256M"}, {"CUPOOL_SIM_FAIL", "cuMemHostAlloc:1=2"}}));
  EXPECT_EQ(run.process.out, "allocated 0\n") << run.describe();
  EXPECT_GT(run.counter("returned_bytes_total"), 0u) << run.describe();
}

// Contract 2: a launch that was refused has submitted nothing that a free could wait for.
TEST(Refused, ALaunchHoldsUpNoFree) {
  const std::pair<const char*, const char*> launches[] = {
      {"graph", "cuGraphLaunch:*=2"}, {"kernel", "cuLaunchCooperativeKernel:*=2"}};
  for (const auto& [by, fault] : launches) {
    const PreloadedRun run = run_preloaded(std::string("probe_refused case=launch by=") + by,
                                           with(kIdleStays, {{"CUPOOL_SIM_FAIL", fault},
                                                             {"CUPOOL_SIM_MODE", "timed"},
                                                             {"CUPOOL_MAX_PENDING", "100%"}}));
    EXPECT_EQ(run.process.out, "free waited 0\nlaunch 2\n") << by << run.describe();
  }
}

}  // namespace
}  // namespace preload
