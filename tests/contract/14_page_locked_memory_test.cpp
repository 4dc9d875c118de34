// SPDX-License-Identifier: Apache-2.0
// Contract 14: page-locked host memory, served again once nothing uses it, is as without cupool.
#include <map>
#include <sstream>

#include "harness.h"

namespace preload {
namespace {

// Work is complete when it is submitted: what is cached depends on the program alone.
const Environment kEarly{{"CUPOOL_SIM_MODE", "early"}};

const char* const kModes[] = {"auto", "ordered", "sync"};

// Contracts 3, 6 and 14.
TEST(PageLockedMemory, IsSeenAsWithoutUs) {
  for (const char* mode : kModes) {
    SCOPED_TRACE(mode);
    expect_same("probe_host_memory case=seen", 0, 1, {{"CUPOOL_FREE_MODE", mode}});
  }
}

TEST(PageLockedMemory, IsServedAgain) {
  const PreloadedRun run = expect_same("probe_host_memory case=pairs rounds=10", 0, 1, kEarly);
  EXPECT_EQ(run.counter("host_malloc_calls_total"), 110u);
  EXPECT_EQ(run.counter("host_free_calls_total"), 110u);
  EXPECT_EQ(run.counter("host_served_total"), 100u) << "ten sizes and one more that is free";
}

TEST(PageLockedMemory, IsItsOwnersWithManyThreads) {
  for (const char* mode : kModes) {
    SCOPED_TRACE(mode);
    expect_same("probe_host_memory case=pairs threads=8 rounds=20", 0, 1,
                {{"CUPOOL_FREE_MODE", mode}});
  }
}

// Contract 2: the host writes at once, so that no order on the device is enough.
TEST(PageLockedMemory, IsHandedOutOnceNoKernelUsesIt) {
  for (const char* mode : kModes) {
    for (const char* bytes : {"4096", "3000000"}) {
      SCOPED_TRACE(std::string(mode) + " " + bytes);
      expect_same(std::string("probe_host_memory case=busy bytes=") + bytes, 0, 1,
                  {{"CUPOOL_FREE_MODE", mode}, {"CUPOOL_SIM_JUDGE", "1"}});
    }
  }
}

// Contracts 3 and 14, by both ways into the library: with the shared runtime cupool answers by
// itself what it can.
TEST(PageLockedMemory, OfTheRuntimeIsSeenAsWithoutUs) {
  for (const char* runtime : {"shared", "static"}) {
    for (const char* what : {"errors", "flags"}) {
      for (const Environment& environment : {Environment{}, kEarly}) {
        SCOPED_TRACE(std::string(runtime) + " " + what);
        expect_same(std::string("probe_host_runtime_") + runtime + " case=" + what, 0, 1,
                    environment);
      }
    }
  }
}

TEST(PageLockedMemory, OfTheRuntimeIsHandedOutOnceNoCopyUsesIt) {
  for (const char* mode : kModes) {
    SCOPED_TRACE(mode);
    expect_same("probe_host_runtime_shared case=busy rounds=50", 0, 1,
                {{"CUPOOL_FREE_MODE", mode}, {"CUPOOL_SIM_JUDGE", "1"}});
  }
}

// A run with many pairs, and the driver's calls in it.
std::map<std::string, std::uint64_t> calls_of_pairs(const std::string& arguments,
                                                    std::uint64_t pairs) {
  const ScratchFolder folder;
  const std::string file = folder.path() + "/calls";
  const PreloadedRun run = run_preloaded("probe_host_runtime_shared case=pairs " + arguments,
                                         with(kEarly, {{"CUPOOL_SIM_CALLS", file}}));
  EXPECT_EQ(run.process.exit_code, 0) << run.describe();
  EXPECT_EQ(run.counter("host_malloc_calls_total"), pairs);
  EXPECT_EQ(run.counter("host_free_calls_total"), pairs);
  std::map<std::string, std::uint64_t> calls;
  std::istringstream lines(read_file(file));
  std::string symbol;
  for (std::uint64_t count = 0; lines >> symbol >> count;) calls[symbol] = count;
  return calls;
}

// The simulated runtime asks the driver for the current context in each of its calls. Each thread
// makes a few of them, until cupool knows its context.
TEST(PageLockedMemory, OfASharedRuntimeIsServedWithoutIt) {
  EXPECT_LT(calls_of_pairs("rounds=1000", 1000)["cuCtxGetCurrent"], 100u);
  EXPECT_LT(calls_of_pairs("rounds=1000 threads=8", 8000)["cuCtxGetCurrent"], 800u);
}

// Contract 8.
TEST(PageLockedMemory, OfASharedRuntimeIsTheDriversForListedLibraries) {
  const PreloadedRun run =
      expect_same("probe_host_runtime_shared case=pairs rounds=20", 0, 1,
                  with(kEarly, {{"CUPOOL_BYPASS_LIBS", "probe_host_runtime_shared"}}));
  EXPECT_EQ(run.counter("host_served_total"), 0u);
}

// Contract 10.
TEST(PageLockedMemory, GoesWithItsContext) {
  const PreloadedRun run = expect_same("probe_host_memory case=reset", 0, 1, kEarly);
  EXPECT_EQ(run.counter("host_lost_bytes_total"), 3 * 8192u);
}

TEST(PageLockedMemory, IsTheDriversWithSeveralContexts) {
  const PreloadedRun run = expect_same("probe_host_memory case=contexts", 0, 1, kEarly);
  EXPECT_EQ(run.counter("host_served_total"), 0u);
}

TEST(PageLockedMemory, IsAllocatedWithoutAWaitForWorkOfAnotherContext) {
  for (const char* mode : kModes) {
    SCOPED_TRACE(mode);
    expect_same("probe_host_memory case=held", 0, 1, {{"CUPOOL_FREE_MODE", mode}});
  }
}

// Contract 9.
TEST(PageLockedMemory, IsTheDriversDuringACapture) {
  expect_same("probe_host_memory case=capture");
}

TEST(PageLockedMemory, IsTheDriversIfTheCacheIsOff) {
  const PreloadedRun run = expect_same("probe_host_memory case=pairs rounds=10", 0, 1,
                                       with(kEarly, {{"CUPOOL_HOST_MAX_CACHED", "0"}}));
  EXPECT_EQ(run.counter("host_malloc_calls_total"), 110u);
  EXPECT_EQ(run.counter("host_served_total"), 0u);
  EXPECT_EQ(run.counter("host_free_calls_total"), 0u);
}

TEST(PageLockedMemory, GoesBackAfterATime) {
  const PreloadedRun run = expect_same("probe_host_memory case=idle ms=1500", 0, 1,
                                       with(kEarly, {{"CUPOOL_DECAY_MS", "300"}}));
  EXPECT_EQ(run.counter("host_returned_bytes_total"), 8u << 20);
}

// Contract 4: the call that fails is made again after idle memory went back.
TEST(PageLockedMemory, GoesBackBeforeACallIsRefused) {
  const PreloadedRun run = run_preloaded("probe_host_memory case=idle ms=0",
                                         with(kEarly, {{"CUPOOL_SIM_FAIL", "cuMemHostAlloc:9=2"}}));
  EXPECT_EQ(run.process.exit_code, 0) << run.describe();
  EXPECT_EQ(run.counter("host_returned_bytes_total"), 8u << 20);
}

TEST(PageLockedMemory, GoesBackThoughAnotherThreadKeepsTheGpuBusy) {
  const PreloadedRun run =
      run_preloaded("probe_host_memory case=crowded",
                    {{"CUPOOL_SIM_MODE", "timed"}, {"CUPOOL_SIM_FAIL", "cuMemHostAlloc:9=2"}});
  EXPECT_EQ(run.process.exit_code, 0) << run.describe();
  EXPECT_TRUE(contains(run.process.out, "allocation 0")) << run.describe();
  EXPECT_GE(run.counter("host_returned_bytes_total"), 2u << 20);
}

// The simulated driver has no such memory, and says so where it is asked again.
TEST(PageLockedMemory, GoesBackForPhysicalMemoryOfTheHost) {
  const PreloadedRun run = run_preloaded("probe_host_memory case=physical",
                                         with(kEarly, {{"CUPOOL_SIM_FAIL", "cuMemCreate:1=2"}}));
  EXPECT_TRUE(contains(run.process.out, "physical memory 1")) << run.describe();
  EXPECT_EQ(run.counter("host_returned_bytes_total"), 8u << 20);
}

// A second context in which the program allocates nothing: nobody tells cupool of it later.
TEST(PageLockedMemory, GoesBackBesideAnotherContext) {
  for (const char* way : {"created", "current", "held"}) {
    SCOPED_TRACE(way);
    const std::string beside = std::string(" beside=") + way;
    const Environment two = with(kEarly, {{"CUPOOL_SIM_DEVICES", "2"}});
    const PreloadedRun decayed = expect_same("probe_host_memory case=idle ms=1500" + beside, 0, 1,
                                             with(two, {{"CUPOOL_DECAY_MS", "300"}}));
    EXPECT_EQ(decayed.counter("host_returned_bytes_total"), 8u << 20);
    const PreloadedRun at_once = run_preloaded("probe_host_memory case=idle ms=0" + beside, two);
    EXPECT_EQ(at_once.process.exit_code, 0) << at_once.describe();
    EXPECT_EQ(at_once.counter("host_returned_bytes_total"), 8u << 20);
  }
}

// Contract 11: who was served reports, even without device memory. Libraries that pin memory once
// make no report.
TEST(PageLockedMemory, AloneMakesAReportOnceTheCacheHasServed) {
  EXPECT_EQ(expect_same("probe_host_memory case=only rounds=1", 0, 0, kEarly).process.err, "");
  const PreloadedRun run = expect_same("probe_host_memory case=only rounds=9", 0, 1, kEarly);
  EXPECT_EQ(run.counter("host_served_total"), 8u);
}

// Fail open.
TEST(PageLockedMemory, SurvivesADriverThatRefusesCalls) {
  for (const char* rule : {"cuCtxRecordEvent:*=801", "cuEventQuery:*=999", "cuEventCreate:*=2",
                           "cuMemFreeHost:1=999"}) {
    SCOPED_TRACE(rule);
    const PreloadedRun run =
        run_preloaded("probe_host_memory case=pairs rounds=5", {{"CUPOOL_SIM_FAIL", rule}});
    EXPECT_EQ(run.process.exit_code, 0) << run.describe();
  }
}

}  // namespace
}  // namespace preload
