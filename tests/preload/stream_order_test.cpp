// SPDX-License-Identifier: Apache-2.0
// Contract 2: what a thread does after a free comes after its work before it, in any stream
// (docs/design.md, Order behind a free).
#include "harness.h"

namespace preload {
namespace {

const Environment kLate = {{"CUPOOL_POOL_START", "first"}, {"CUPOOL_SIM_MODE", "late"}};

class StreamOrder : public testing::TestWithParam<const char*> {};

// Contract 2.
TEST_P(StreamOrder, IsThatOfTheDriversFree) {
  for (const char* lane : {"1", "0"}) {
    for (const char* mode : {"late", "early"}) {
      SCOPED_TRACE(std::string("lane ") + lane + ", " + mode);
      const PreloadedRun run = expect_same(
          std::string("probe_stream_order ") + GetParam(), 0, 1,
          with(kLate,
               {{"CUPOOL_LANE", lane}, {"CUPOOL_SIM_MODE", mode}, {"CUPOOL_SIM_DEVICES", "2"}}));
      expect_counts(run);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, StreamOrder,
                         testing::Values("copy", "legacy", "from_legacy", "per_thread", "fill",
                                         "graph", "beside_capture", "destroyed", "destroyed_before",
                                         "thread", "event", "event_in_lane", "event_in_lane_joined",
                                         "elapsed", "elapsed_later", "elapsed_elsewhere", "entry",
                                         "default_streams", "context_end", "pool", "pool_unordered",
                                         "pool_of_graphs", "pool_shared", "joined", "unmapped",
                                         "crowd", "devices", "many", "freed_in_legacy",
                                         "freed_in_blocking", "waits_devices", "waits_thread",
                                         "hang", "hang_devices"),
                         [](const auto& row) { return std::string(row.param); });

// Contract 2: a free holds nothing up but what the driver's would.
TEST(WhatAFreeHolds, IsNoMoreThanWithoutCupool) {
  const struct {
    const char* way;
    const char* mode;
  } rows[] = {{"lane_left", "late"},    {"moving_mark", "timed"},   {"blocking_streams", "late"},
              {"allocation", "late"},   {"trim", "late"},           {"ending_context", "late"},
              {"legacy_next", "timed"}, {"legacy_before", "timed"}, {"other_context", "timed"}};
  for (const auto& row : rows) {
    for (const char* lane : {"1", "0"}) {
      SCOPED_TRACE(std::string(row.way) + ", lane " + lane);
      expect_same(std::string("probe_free_holds ") + row.way, 0, 1,
                  with(kLate, {{"CUPOOL_LANE", lane},
                               {"CUPOOL_SIM_MODE", row.mode},
                               {"CUPOOL_SIM_DEVICES", "2"}}));
    }
  }
}

// Contract 2: behind the driver's free no kernel runs that could still use it.
TEST(StreamOrder, WhatIsTakenAwayIsUsedByNoKernel) {
  const Environment environment = {{"CUPOOL_POOL_START", "first"}, {"CUPOOL_SIM_MODE", "timed"}};
  for (const char* lane : {"1", "0"}) {
    const PreloadedRun run =
        expect_same("probe_taken_away", 0, 1, with(environment, {{"CUPOOL_LANE", lane}}));
    EXPECT_EQ(run.process.out,
              "reading only complete=1\nno access complete=1\nlibrary complete=1\n");
    EXPECT_EQ(
        run_preloaded("probe_taken_away case=given", with(environment, {{"CUPOOL_LANE", lane}}))
            .process.out,
        "given complete=0\n");
    EXPECT_EQ(run_preloaded("probe_taken_away case=peers",
                            with(environment, {{"CUPOOL_LANE", lane}, {"CUPOOL_SIM_DEVICES", "2"}}))
                  .process.out,
              "given complete=0\npool complete=1\ndevice complete=1\n");
  }
}

// Contracts 2 and 12: frees that need no driver call, in streams of several threads.
TEST(StreamOrderOfServedFrees, IsThatOfTheDriversFree) {
  for (const char* way : {"pool", "pool_unordered", "pool_shared"}) {
    for (const char* lane : {"1", "0"}) {
      for (const char* mode : {"late", "early"}) {
        SCOPED_TRACE(std::string(way) + ", lane " + lane + ", " + mode);
        const PreloadedRun run = expect_same(
            std::string("probe_stream_order ") + way, 0, 1,
            with(kLate,
                 {{"CUPOOL_LANE", lane}, {"CUPOOL_SIM_MODE", mode}, {"CUPOOL_ASYNC", "serve"}}));
        EXPECT_GT(run.counter("own_async_served_total"), 0u) << run.describe();
      }
    }
  }
}

// Contract 2: memory that another thread has freed in stream order.
TEST(StreamOrderOfAllocations, IsThatOfTheDriversFree) {
  for (const char* async : {"threshold", "serve"}) {
    for (const char* lane : {"1", "0"}) {
      SCOPED_TRACE(std::string(async) + ", lane " + lane);
      const PreloadedRun run =
          expect_same("probe_allocation_order", 0, 1,
                      with(kLate, {{"CUPOOL_LANE", lane}, {"CUPOOL_ASYNC", async}}));
      EXPECT_EQ(run.process.out, "same memory 4 wrong 0\n");
    }
  }
}

// Contract 2: what `ordered` does not promise, so that the tests above can fail.
TEST(StreamOrderInOrderedMode, IsTheProgramsOwn) {
  for (const char* way : {"copy", "elapsed", "thread"}) {
    const PreloadedRun run =
        run_preloaded(std::string("probe_stream_order ") + way,
                      with(kLate, {{"CUPOOL_FREE_MODE", "ordered"}, {"CUPOOL_LANE", "0"}}));
    EXPECT_TRUE(contains(run.process.out, "wrong 6")) << run.describe();
  }
}

// The wrong engines that these tests have to find.
TEST(StreamOrderMutation, IsFound) {
  if (!tested_build().sanitizer.empty()) GTEST_SKIP() << "no such engine with a sanitizer";
  const struct {
    const char* mutation;
    const char* way;
    const char* lane = "0";
    const char* probe = "probe_stream_order";
  } rows[] = {{"forgets-the-order-of-a-free", "copy"},
              {"forgets-the-order-of-a-free", "legacy"},
              {"forgets-the-order-of-a-free", "devices"},
              {"forgets-the-order-of-a-free", "many"},
              {"trusts-a-destroyed-handle", "destroyed_before"},
              {"forgets-ended-threads", "joined"},
              {"forgets-a-pending-mark", "event_in_lane_joined", "1"},
              {"ends-a-thread-without-a-wait", "thread"},
              {"frees-memory-of-pools-at-once", "pool_unordered"},
              {"frees-memory-of-pools-at-once", "pool_of_graphs"},
              {"forgets-the-order-of-served-frees", "pool_shared"},
              {"forgets-the-order-of-allocations", "", "0", "probe_allocation_order"},
              {"forgets-that-a-free-is-an-operation", "freed_in_legacy"},
              {"forgets-that-a-free-is-an-operation", "freed_in_blocking"},
              {"forgets-the-order-of-waits", "waits_devices"},
              {"forgets-the-order-of-waits", "waits_thread"},
              {"forgets-the-order-of-an-event", "event_in_lane", "1"}};
  for (const auto& row : rows) {
    SCOPED_TRACE(std::string(row.mutation) + ", " + row.way);
    Environment environment = with(kLate, {{"CUPOOL_STATS", "off"},
                                           {"CUPOOL_LANE", row.lane},
                                           {"CUPOOL_ASYNC", "serve"},
                                           {"CUPOOL_SIM_DEVICES", "2"},
                                           {"CUPOOL_TEST_MUTATION", row.mutation}});
    environment["LD_PRELOAD"] = tested_build().folder + "/tests/libcupool_mutable.so";
    const ProcessResult run = run_plain(std::string(row.probe) + " " + row.way, environment);
    EXPECT_NE(run.exit_code, 0) << run.describe();
  }
}

// With pools, the end of a context waits for what was freed there before it keeps threads out.
TEST(WhatAFreeHoldsMutation, IsFound) {
  if (!tested_build().sanitizer.empty()) GTEST_SKIP() << "no such engine with a sanitizer";
  const struct {
    const char* mutation;
    const char* way;
    const char* mode;
    const char* backend;
  } rows[] = {{"follows-the-mark", "moving_mark", "timed", "pool"},
              {"waits-to-allocate", "allocation", "late", "pool"},
              {"holds-up-the-legacy-stream", "legacy_next", "timed", "pool"},
              {"holds-up-the-legacy-stream", "legacy_before", "timed", "pool"},
              {"holds-up-other-contexts", "other_context", "timed", "pool"},
              {"ends-before-its-points", "ending_context", "late", "malloc"}};
  for (const auto& row : rows) {
    SCOPED_TRACE(std::string(row.mutation) + ", " + row.way);
    Environment environment = with(kLate, {{"CUPOOL_STATS", "off"},
                                           {"CUPOOL_SIM_MODE", row.mode},
                                           {"CUPOOL_SIM_DEVICES", "2"},
                                           {"CUPOOL_BACKEND", row.backend},
                                           {"CUPOOL_TEST_MUTATION", row.mutation}});
    environment["LD_PRELOAD"] = tested_build().folder + "/tests/libcupool_mutable.so";
    // A thread that is off its processor for long can hide the fault, and nothing can feign it.
    bool is_found = false;
    for (int attempt = 0; attempt < 3 && !is_found; ++attempt) {
      is_found = run_plain(std::string("probe_free_holds ") + row.way, environment).exit_code != 0;
    }
    EXPECT_TRUE(is_found);
  }
}

}  // namespace
}  // namespace preload
