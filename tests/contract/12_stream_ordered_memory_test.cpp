// SPDX-License-Identifier: Apache-2.0
// Contract 12 with CUPOOL_ASYNC=serve: the program's own stream-ordered memory is served in the
// order of its streams, and what the program sees is what the driver alone would show it.
#include <sstream>

#include "harness.h"

namespace preload {
namespace {

Environment serving(const Environment& more = {}) {
  return with({{"CUPOOL_ASYNC", "serve"}, {"CUPOOL_DECAY_MS", "0"}}, more);
}

PreloadedRun expect_same_serving(const std::string& mode, const Environment& more = {}) {
  SCOPED_TRACE(mode);
  return expect_same("probe_async mode=" + mode, 0, 1, serving(more));
}

TEST(StreamOrderedMemory, IsItsStreamsAgainAtOnce) {
  for (const char* mode : {"late", "early"}) {
    const PreloadedRun run = expect_same_serving("pairs", {{"CUPOOL_SIM_MODE", mode}});
    EXPECT_EQ(run.counter("own_async_malloc_calls_total"), 201u);
    EXPECT_EQ(run.counter("own_async_free_calls_total"), 201u);
    EXPECT_GE(run.counter("own_async_served_total"), 201u - 17u) << "eight sizes, two of each live";
  }
}

TEST(StreamOrderedMemory, IsServedByEveryNameOfItsFunctions) {
  const PreloadedRun run = expect_same("probe_async_calls mode=named", 0, 1, serving());
  EXPECT_GE(run.counter("own_async_served_total"), 4u) << "all of the second round";
  const PreloadedRun bypassed = expect_same("probe_async_calls mode=named", 0, 1,
                                            serving({{"CUPOOL_BYPASS_LIBS", "probe_async_calls"}}));
  EXPECT_EQ(bypassed.counter("own_async_served_total"), 0u);
}

TEST(StreamOrderedMemory, IsTheDriversWhereItRefuses) {  // contract 3
  expect_same("probe_async_calls mode=refused", 0, 1, serving());
}

TEST(StreamOrderedMemory, IsNobodysInAForkedChild) {  // contract 11
  expect_same("probe_async_calls mode=fork", 0, 1, serving());
}

TEST(StreamOrderedMemory, IsNotServedUnlessToldSo) {
  for (const char* mode : {"threshold", "off"}) {
    const PreloadedRun run = expect_same("probe_async mode=pairs", 0, 1, {{"CUPOOL_ASYNC", mode}});
    EXPECT_EQ(run.counter("own_async_served_total"), 0u);
  }
}

TEST(StreamOrderedMemory, IsServedToManyThreads) {
  for (const char* own : {"0", "1"}) {
    const PreloadedRun run = expect_same_serving(std::string("pairs n=16 own=") + own);
    EXPECT_EQ(run.counter("own_async_malloc_calls_total"), 3201u);
    if (own[0] == '0') {
      EXPECT_GE(run.counter("own_async_served_total"), 3201u - 257u);
    } else {
      EXPECT_EQ(run.counter("own_async_served_total"), 0u) << "the driver's are operations";
    }
  }
}

TEST(StreamOrderedMemory, IsAnotherStreamsOnlyBehindAFence) {
  for (const char* mode : {"late", "early", "timed"}) {
    const PreloadedRun run = expect_same_serving("others", {{"CUPOOL_SIM_MODE", mode}});
    EXPECT_GE(run.counter("own_async_served_total"), 3u);
  }
}

TEST(StreamOrderedMemory, IsNotThatOfAStreamWithTheSameHandle) {
  for (const char* mode : {"late", "timed"}) {
    expect_same_serving("again", {{"CUPOOL_SIM_MODE", mode}});
  }
}

TEST(StreamOrderedMemory, IsRefusedAsTheDriverDoes) {
  expect_same_serving("errors");
}

TEST(StreamOrderedMemory, CountsAsTheDriverCounts) {
  expect_same_serving("reads", {{"CUPOOL_SIM_MODE", "early"}});
  expect_same_serving("sizes");
}

TEST(StreamOrderedMemory, TellsWhatWasRequested) {
  expect_same_serving("queries");
}

TEST(StreamOrderedMemory, IsTheDriversInACapture) {
  expect_same_serving("capture");
}

TEST(StreamOrderedMemory, IsTheDriversOnceTheProgramSetsAPool) {
  expect_same_serving("pool");
  expect_same_serving("managed");
}

TEST(StreamOrderedMemory, IsServedThoughTheProgramSetsThePoolThatIsCurrent) {
  const PreloadedRun run = expect_same_serving("same_pool");
  EXPECT_EQ(run.counter("own_async_served_total"), 9u);
}

TEST(StreamOrderedMemory, GoesBackBeforeItsContextEnds) {
  for (const char* mode : {"late", "early"}) {
    expect_same_serving("context", {{"CUPOOL_SIM_MODE", mode}});
  }
}

TEST(StreamOrderedMemory, GoesBackAlthoughItsContextEndsInABadMoment) {
  for (const char* how : {"capture", "events", "sticky"}) {
    for (const char* backend : {"pool", "malloc"}) {
      for (const char* mode : {"late", "early"}) {
        SCOPED_TRACE(std::string(backend) + ", " + mode);
        expect_same_serving(std::string("end how=") + how,
                            {{"CUPOOL_BACKEND", backend}, {"CUPOOL_SIM_MODE", mode}});
      }
    }
  }
}

// Contract 5.
TEST(StreamOrderedMemory, OfEachContextCountsAsFree) {
  for (const char* threshold : {"100%", "0"}) {
    for (const char* mode : {"late", "early"}) {
      SCOPED_TRACE(std::string(threshold) + ", " + mode);
      expect_same_serving("info",
                          {{"CUPOOL_RELEASE_THRESHOLD", threshold}, {"CUPOOL_SIM_MODE", mode}});
    }
  }
}

// Contract 4 and 5.
TEST(StreamOrderedMemory, IsThereForEveryAllocator) {
  for (const char* mode : {"late", "early", "timed"}) {
    expect_same_serving("oom", {{"CUPOOL_SIM_MODE", mode}, {"CUPOOL_SIM_MEMORY", "256M"}});
  }
}

// Contract 4: as soon as the driver alone would have it.
void expect_memory_at_once(const std::string& way, const Environment& more = {}) {
  for (const char* mode : {"late", "timed"}) {
    SCOPED_TRACE(way + ", " + mode);
    const PreloadedRun run = expect_same(
        "probe_async_full case=" + way, 0, 1,
        serving(with({{"CUPOOL_SIM_MODE", mode}, {"CUPOOL_SIM_MEMORY", "256M"}}, more)));
    EXPECT_EQ(run.process.out, "allocated 0\nat once 1\n");
  }
}

TEST(StreamOrderedMemory, IsThereForItsStreamAlthoughTheDeviceIsBusy) {
  for (const char* way : {"own", "beside"}) expect_memory_at_once(way);
}

TEST(StreamOrderedMemory, OfAStreamThatHasNothingLeftIsThereAlthoughTheDeviceIsBusy) {
  for (const char* by : {"async", "malloc", "info", "trim"}) {
    expect_memory_at_once(std::string("elsewhere by=") + by);
  }
  for (const char* by : {"async", "malloc", "info", "trim", "blocks"}) {
    expect_memory_at_once(std::string("gone by=") + by);
  }
  for (const char* by : {"async", "blocks"}) {
    expect_memory_at_once(std::string("later by=") + by);
  }
}

// A capture leaves alone what nobody may ask during it. A call looks for a moment only, in which a
// slow machine asks once.
TEST(StreamOrderedMemory, OfBeforeACaptureIsThereDuringIt) {
  for (const char* by : {"async", "malloc", "info", "trim"}) {
    expect_memory_at_once(std::string("captured by=") + by, {{"CUPOOL_SIM_POLLS", "0"}});
  }
}

// A trim takes only what a wait has covered.
TEST(StreamOrderedMemory, OfAnEndedContextIsThereAtOnce) {
  for (const char* end : {"reset", "release", "other", "managed", "setpool"}) {
    for (const char* by : {"malloc", "info"}) {
      for (const char* mode : {"late", "timed"}) {
        SCOPED_TRACE(std::string(end) + ", " + by + ", " + mode);
        const PreloadedRun run =
            expect_same(std::string("probe_async_full case=ended end=") + end + " by=" + by, 0, 1,
                        serving({{"CUPOOL_SIM_MODE", mode}, {"CUPOOL_SIM_MEMORY", "256M"}}));
        EXPECT_EQ(run.process.out, "allocated 0\n");
      }
    }
  }
}

// A driver without room may look for some until all work is over. To the driver, what lies idle is
// in use.
const Environment kLateRefusals = {
    {"CUPOOL_SIM_LATE_REFUSALS", "1"}, {"CUPOOL_SIM_MODE", "late"}, {"CUPOOL_SIM_MEMORY", "256M"}};

TEST(StreamOrderedMemory, IsThereBeforeTheDriverIsAskedForMore) {
  for (const char* start : {"first", "background"}) {
    for (const char* way : {"elsewhere by=malloc", "gone by=malloc"}) {
      SCOPED_TRACE(std::string(way) + ", " + start);
      const PreloadedRun run =
          expect_same(std::string("probe_async_full case=") + way, 0, 1,
                      serving(with(kLateRefusals, {{"CUPOOL_POOL_START", start}})));
      EXPECT_EQ(run.process.out, "allocated 0\nat once 1\n");
    }
  }
}

TEST(StreamOrderedMemory, IsThereWhateverElseGoesOn) {
  for (const char* way : {"copy", "gap", "chunk", "contexts", "abroad"}) {
    SCOPED_TRACE(way);
    const PreloadedRun run =
        expect_same(std::string("probe_async_beside ") + way, 0, 1,
                    serving({{"CUPOOL_SIM_MODE", "timed"},
                             {"CUPOOL_SIM_MEMORY", "256M"},
                             {"CUPOOL_SIM_DEVICES", way == std::string("abroad") ? "2" : "1"}}));
    EXPECT_EQ(run.process.out, "allocated 0\nat once 1\n");
  }
}

// Contract 4: what goes back in small pieces meanwhile ends no wait for what is enough.
TEST(StreamOrderedMemory, OfOthersLeavesAllPatienceToAnAllocation) {
  expect_same("probe_async_full case=waits", 0, 1,
              serving({{"CUPOOL_SIM_MODE", "timed"}, {"CUPOOL_SIM_MEMORY", "256M"}}));
}

TEST(StreamOrderedMemory, GoesBackAfterAWhile) {
  for (const char* mode : {"late", "early"}) {
    expect_same_serving("decay", {{"CUPOOL_DECAY_MS", "80"}, {"CUPOOL_SIM_MODE", mode}});
    expect_same_serving("pairs n=16", {{"CUPOOL_DECAY_MS", "4"}, {"CUPOOL_SIM_MODE", mode}});
  }
}

// Also if nothing else would start the threads that give memory back.
TEST(StreamOrderedMemory, GoesBackAfterAWhileToAPoolThatIsNotKept) {
  for (const char* mode : {"late", "early"}) {
    const Environment environment = {{"CUPOOL_DECAY_MS", "80"}, {"CUPOOL_SIM_MODE", mode}};
    expect_same_serving("decay threshold=1", environment);
    expect_same_serving("decay", with(environment, {{"CUPOOL_RELEASE_THRESHOLD", "0"}}));
  }
}

TEST(StreamOrderedMemory, IsFreedByTheDriverWhereTheStreamIsNotKnown) {
  expect_same_serving("free");
}

// By the runtime, with the last error; short cuts of a shared one or not.
TEST(StreamOrderedMemory, OfTheRuntimeIsAsWithoutUs) {
  for (const char* runtime : {"shared", "static"}) {
    for (const char* arguments : {"case=errors", "case=pairs rounds=200 threads=4"}) {
      for (const char* mode : {"late", "early"}) {
        SCOPED_TRACE(std::string(runtime) + ", " + arguments + ", " + mode);
        expect_same(std::string("probe_async_runtime_") + runtime + " " + arguments, 0, 1,
                    serving({{"CUPOOL_SIM_MODE", mode}}));
      }
    }
  }
}

// The simulated runtime asks the driver for the current context in each of its calls.
TEST(StreamOrderedMemory, OfASharedRuntimeIsServedWithoutIt) {
  const ScratchFolder folder;
  const std::string file = folder.path() + "/calls";
  const PreloadedRun run =
      run_preloaded("probe_async_runtime_shared case=pairs rounds=1000 threads=4",
                    serving({{"CUPOOL_SIM_CALLS", file}}));
  EXPECT_EQ(run.process.exit_code, 0) << run.describe();
  EXPECT_EQ(run.counter("own_async_malloc_calls_total"), 4000u);
  EXPECT_EQ(run.counter("own_async_free_calls_total"), 4000u);
  std::istringstream lines(read_file(file));
  std::string symbol;
  std::uint64_t asked = 0;
  for (std::uint64_t count = 0; lines >> symbol >> count;) {
    if (symbol == "cuCtxGetCurrent") asked = count;
  }
  // Those of the fills, the copies and the waits, a sixteenth each, and of the first pairs.
  EXPECT_LT(asked, 2000u);
}

TEST(StreamOrderedMemory, IsAnotherStreamsBehindAWaitForTheDevice) {
  for (const char* runtime : {"shared", "static"}) {
    const PreloadedRun run =
        expect_same(std::string("probe_async_runtime_") + runtime + " case=waits streams=20", 0, 1,
                    serving({{"CUPOOL_SIM_MODE", "late"}}));
    EXPECT_GE(run.counter("own_async_served_total"), 18u) << runtime;
  }
}

// Contract 8.
TEST(StreamOrderedMemory, OfASharedRuntimeIsTheDriversForListedLibraries) {
  const PreloadedRun run =
      expect_same("probe_async_runtime_shared case=pairs rounds=20", 0, 1,
                  serving({{"CUPOOL_BYPASS_LIBS", "probe_async_runtime_shared"}}));
  EXPECT_EQ(run.counter("own_async_served_total"), 0u);
}

// An allocation and a free are operations of the legacy stream, which orders others.
TEST(StreamOrderedMemory, LeavesTheOrderOfTheLegacyStream) {
  for (const char* mode : {"late", "early", "timed"}) {
    expect_same_serving("implicit", {{"CUPOOL_SIM_MODE", mode}});
  }
}

// Of other memory, too.
TEST(StreamOrderedMemory, LeavesTheOrderThatBlockingStreamsGive) {
  for (const char* stream : {"legacy", "blocking", "per-thread"}) {
    for (const char* mode : {"late", "early", "timed"}) {
      SCOPED_TRACE(mode);
      expect_same_serving(std::string("order stream=") + stream, {{"CUPOOL_SIM_MODE", mode}});
    }
  }
}

// Mutation testing.
TEST(StreamOrderedMemory, IsMissed) {
  if (!tested_build().sanitizer.empty()) GTEST_SKIP() << "no such engine with a sanitizer";
  const struct {
    const char* mutation;
    const char* program;
    const char* out;
  } rows[] = {{"asks-before-it-gives-back", "gone by=malloc longest=6", "allocated 0\nat once 0\n"},
              {"begins-a-capture-without-a-fence", "captured by=info", "allocated 1\nat once 1\n"},
              {"ends-without-a-wait", "ended end=reset by=info", "allocated 1\n"},
              {"ends-without-a-wait", "ended end=managed by=info", "allocated 1\n"}};
  for (const auto& [mutation, program, out] : rows) {
    SCOPED_TRACE(mutation);
    Environment environment =
        serving(with(kLateRefusals, {{"CUPOOL_STATS", "off"}, {"CUPOOL_TEST_MUTATION", mutation}}));
    environment["LD_PRELOAD"] = tested_build().folder + "/tests/libcupool_mutable.so";
    const ProcessResult run =
        run_plain(std::string("probe_async_full case=") + program, environment);
    EXPECT_EQ(run.out, out) << run.describe();
  }
}

// Contract 12, mutation testing.
TEST(StreamOrderedMemory, IsJudged) {
  if (!tested_build().sanitizer.empty()) GTEST_SKIP() << "no such engine with a sanitizer";
  const struct {
    const char* mutation;
    const char* program;
    const char* mode = "late";
  } rows[] = {
      {"reuses-on-another-stream", "probe_async mode=others"},
      {"reuses-behind-implicit-order", "probe_async mode=implicit"},
      {"keeps-a-destroyed-streams-blocks", "probe_async mode=again"},
      {"takes-a-busy-streams-blocks", "probe_async_full case=later by=blocks", "timed"},
      {"takes-a-busy-streams-blocks", "probe_async_full case=gone_later by=blocks", "timed"}};
  for (const auto& [mutation, program, mode] : rows) {
    SCOPED_TRACE(mutation);
    Environment environment = serving({{"CUPOOL_SIM_MODE", mode},
                                       {"CUPOOL_SIM_MEMORY", "256M"},
                                       {"CUPOOL_STATS", "off"},
                                       {"CUPOOL_TEST_MUTATION", mutation}});
    environment["LD_PRELOAD"] = tested_build().folder + "/tests/libcupool_mutable.so";
    const ProcessResult run = run_plain(program, environment);
    EXPECT_NE(run.exit_code, 0) << run.describe();
    EXPECT_NE(run.err.find("cupool sim judge: "), std::string::npos) << run.describe();
  }
}

}  // namespace
}  // namespace preload
