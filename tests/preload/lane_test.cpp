// SPDX-License-Identifier: Apache-2.0
// Contract 2 in a lane (docs/design.md, Lanes): while all work goes to one stream, a freed block is
// handed out with its last work pending; whatever leaves the lane comes behind that work.
#include "harness.h"

namespace preload {
namespace {

const Environment kLane = {
    {"CUPOOL_LANE", "1"}, {"CUPOOL_POOL_START", "first"}, {"CUPOOL_SIM_JUDGE", "1"}};

/// Runs the probe both ways. Returns how often a block came back with work pending, with cupool.
int early_of(const std::string& probe, const Environment& environment) {
  const ScratchFolder folder;
  const std::string file = folder.path() + "/early";
  const PreloadedRun run = expect_same(probe + " early=" + file, 0, 1, environment);
  expect_counts(run);
  return std::atoi(read_file(file).c_str());
}

struct Way {
  const char* name;
  bool leaves;  ///< for good
};

class Lane : public testing::TestWithParam<Way> {};

// Contract 2: the judge sees every access of the next owner that is not ordered behind the last
// one's.
TEST_P(Lane, WorkOfTheNextOwnerComesBehindThatOfTheLast) {
  for (const char* stream : {"legacy", "created"}) {
    for (const char* mode : {"late", "early"}) {
      SCOPED_TRACE(std::string(stream) + ", " + mode);
      const std::string probe = std::string("probe_lane leave=") + GetParam().name + " h=" + stream;
      const Environment environment = with(kLane, {{"CUPOOL_SIM_MODE", mode}});
      const int early = early_of(probe, environment);
      if (!GetParam().leaves) {
        EXPECT_EQ(early, 6);
      } else if (std::string(mode) == "late") {
        EXPECT_EQ(early, 4);
      }
      const int without = early_of(probe, with(environment, {{"CUPOOL_LANE", "0"}}));
      if (std::string(mode) == "late") {
        EXPECT_EQ(without, 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, Lane,
                         testing::Values(Way{"none", false}, Way{"kernel", false},
                                         Way{"per_thread", true}, Way{"copy", false},
                                         Way{"fill", false}, Way{"synchronous_fill", false},
                                         Way{"synchronous_copy", false}, Way{"value", false},
                                         Way{"graph", false}, Way{"graph_in_lane", false},
                                         Way{"thread", false}, Way{"context", true}),
                         [](const auto& row) { return std::string(row.param.name); });

// Contract 2.
TEST(LaneLeft, AHandleThatComesAgainIsAnotherStream) {
  EXPECT_EQ(early_of("probe_lane mode=destroy", kLane), 1);
}

// Contract 2: the process returns to its lane when the work elsewhere is complete, and no sooner.
TEST(LaneLeft, WorkElsewhereKeepsTheProcessAway) {
  for (const char* mode : {"away", "again"}) {
    for (const char* simulated : {"late", "early"}) {
      SCOPED_TRACE(std::string(mode) + ", " + simulated);
      EXPECT_EQ(early_of(std::string("probe_lane mode=") + mode,
                         with(kLane, {{"CUPOOL_SIM_MODE", simulated}})),
                4);
    }
  }
}

// A program that stops its work from another stream goes on.
TEST(LaneLeft, WorkAfterAFreeHoldsNoOtherStreamUp) {
  EXPECT_EQ(early_of("probe_lane mode=hang", kLane), 1);
}

// Contract 9: where cupool serves nothing, nobody counts captures, and there is no lane either.
TEST(LaneLeft, ACaptureIsLeftAlone) {
  for (const char* lane : {"1", "0"}) {
    const Environment environment = with(kLane, {{"CUPOOL_LANE", lane}});
    expect_same("probe_lane mode=capture", 0, 1, environment);
    expect_same("probe_lane mode=capture", 0, 1, with(environment, {{"CUPOOL_MODE", "observe"}}));
    expect_same("probe_lane mode=capture", 0, 0, with(environment, {{"CUPOOL_MODE", "off"}}));
    expect_same("probe_lane mode=capture", 0, 0, with(environment, {{"CUPOOL_ENABLE", "0"}}));
  }
}

// Contract 4: what lies ready is not lost when memory is short, and the judge sees what goes back
// to a pool while work uses it.
TEST(LaneLeft, ReadyMemoryComesBackWhenMemoryIsShort) {
  for (const char* stream : {"legacy", "created"}) {
    expect_same(std::string("probe_lane mode=fill h=") + stream, 0, 1,
                with(kLane, {{"CUPOOL_SIM_MEMORY", "1G"}}));
  }
}

// A program that runs ahead of the GPU needs no more memory for it.
TEST(LaneLeft, RunningAheadCostsNoMemory) {
  const auto held_over_live = [](const char* lane) {
    const PreloadedRun run =
        expect_same("probe_lane mode=steps", 0, 1, with(kLane, {{"CUPOOL_LANE", lane}}));
    const nlohmann::json& gauges = run.reports.at(0)["devices"][0]["gauges"];
    return gauges["held_bytes"]["peak"].get<double>() /
           gauges["application_bytes"]["peak"].get<double>();
  };
  EXPECT_LT(held_over_live("1"), 1.35);
  EXPECT_GT(held_over_live("0"), 1.35);
}

// The order behind a free reaches no work that is not seen, so the free waits itself (contract 2).
TEST(LaneLeft, FreesWaitBesideALibraryThatWorksUnseen) {
  const PreloadedRun run = run_preloaded("probe_lane_unseen mode=library", kLane);
  const nlohmann::json& report = run.reports.at(0);
  EXPECT_EQ(report["mode_reason"]["free_mode"], "sync");
  const std::string why = report["mode_reason"]["text"];
  EXPECT_TRUE(contains(why, "because a library of OptiX or of the video engines is loaded")) << why;
}

// What reaches the GPU unseen: by the library that it comes from, by the name that leads to it, and
// by what the GPU still does when the lane's stream has nothing left.
TEST(LaneLeft, WhatMayWorkUnseenEndsIt) {
  for (const char* how :
       {"mode=library", "mode=name name=optixQueryFunctionTable",
        "mode=name name=NvEncodeAPICreateInstance", "mode=name name=cuvidCreateDecoder"}) {
    SCOPED_TRACE(how);
    const ProcessResult run = run_preloaded(std::string("probe_lane_unseen ") + how, kLane).process;
    EXPECT_EQ(run.exit_code, 0) << run.describe();
    EXPECT_EQ(run.err, "before 1 after 0\n") << run.describe();
  }
  const ProcessResult other =
      run_preloaded("probe_lane_unseen mode=name name=optimum", kLane).process;
  EXPECT_EQ(other.err, "before 1 after 1\n") << other.describe();
}

TEST(LaneLeft, WorkThatIsNotSeenEndsIt) {
  if (!tested_build().sanitizer.empty()) GTEST_SKIP() << "sanitizers refuse RTLD_DEEPBIND";
  for (const char* simulated : {"late", "early"}) {
    SCOPED_TRACE(simulated);
    const ProcessResult run =
        run_preloaded("probe_lane_unseen mode=work", with(kLane, {{"CUPOOL_SIM_MODE", simulated}}))
            .process;
    EXPECT_EQ(run.exit_code, 0) << run.describe();
    EXPECT_TRUE(contains(run.err, "by a route that cupool does not see")) << run.describe();
    EXPECT_TRUE(contains(run.err, "before 1 after 0\n")) << run.describe();
  }
}

/// The lane in the JSON report, and the line of the text report; empty without one.
struct ReportedLane {
  nlohmann::json lane;
  std::string line;
};

ReportedLane lane_in_report(const std::string& probe, const Environment& environment) {
  const ScratchFolder folder;
  const ProcessResult result = run_with_library(
      probe, with(environment, {{"CUPOOL_STATS", "text,full,json"},
                                {"CUPOOL_STATS_FILE", folder.path() + "/report"}}));
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  ReportedLane reported;
  reported.lane =
      nlohmann::json::parse(read_file(folder.path() + "/report.json")).at("process").at("lane");
  for (const std::string& line : lines_of(read_file(folder.path() + "/report"))) {
    if (contains(line, "One lane: ")) reported.line += line;
  }
  return reported;
}

TEST(LaneReport, SaysThatItLasts) {
  const ReportedLane reported =
      lane_in_report("probe_lane_calls call=cuMemsetD8Async args=0,0,0,h open=stream blocks=1",
                     old_driver("lib-newer", kLane));
  EXPECT_GT(reported.lane.at("seconds"), 0.0);
  EXPECT_TRUE(reported.lane.at("end").is_null()) << reported.lane;
  EXPECT_TRUE(contains(reported.line, "One lane: ")) << reported.line;
  EXPECT_FALSE(contains(reported.line, "; ")) << reported.line;
}

// What ends it in these programs is that they release their context before they exit.
TEST(LaneReport, SaysHowLongItLasted) {
  const ReportedLane reported = lane_in_report("probe_lane leave=none", kLane);
  EXPECT_GT(reported.lane.at("seconds"), 0.0);
  EXPECT_EQ(reported.lane.at("away"), 0);
  EXPECT_TRUE(reported.lane.at("last_call").is_null());
  EXPECT_EQ(reported.lane.at("end"), "the end of its context");
  EXPECT_TRUE(contains(reported.line, "; left for good: the end of its context")) << reported.line;
  EXPECT_FALSE(contains(reported.line, "away")) << reported.line;
}

TEST(LaneReport, SaysHowOftenAndByWhichCallTheProcessWasAway) {
  const ReportedLane reported = lane_in_report("probe_lane mode=away", kLane);
  EXPECT_EQ(reported.lane.at("away"), 4) << "once a round";
  EXPECT_EQ(reported.lane.at("last_call"), "cuLaunchKernel");
  EXPECT_TRUE(contains(reported.line, "; away 4 times, last by cuLaunchKernel")) << reported.line;
}

TEST(LaneReport, SaysWhatEndedIt) {
  const ReportedLane reported = lane_in_report("probe_lane leave=per_thread", kLane);
  EXPECT_GT(reported.lane.at("seconds"), 0.0);
  EXPECT_EQ(reported.lane.at("end"), "work on a per-thread default stream");
  EXPECT_EQ(reported.lane.at("end_call"), "cuLaunchKernel");
  EXPECT_TRUE(contains(reported.line,
                       "; left for good: work on a per-thread default stream, by cuLaunchKernel"))
      << reported.line;
}

TEST(LaneReport, SaysWhyThereWasNone) {
  const ReportedLane reported =
      lane_in_report("probe_lane leave=none", with(kLane, {{"CUPOOL_FREE_MODE", "sync"}}));
  EXPECT_EQ(reported.lane.at("end"), "excluded by the settings or by plain memory");
  EXPECT_TRUE(contains(reported.line, "excluded by the settings or by plain memory"))
      << reported.line;
}

TEST(LaneReport, SaysNothingWithoutTheOption) {
  const ReportedLane reported =
      lane_in_report("probe_lane leave=none", with(kLane, {{"CUPOOL_LANE", "0"}}));
  EXPECT_TRUE(reported.lane.is_null()) << reported.lane;
  EXPECT_EQ(reported.line, "");
}

// The wrong engines that these tests have to find.
TEST(LaneMutation, IsFound) {
  if (!tested_build().sanitizer.empty()) GTEST_SKIP() << "no such engine with a sanitizer";
  const struct {
    const char* mutation;
    const char* probe;
  } rows[] = {{"leaves-without-a-wait", "probe_lane leave=kernel"},
              {"leaves-without-a-wait", "probe_lane leave=graph"},
              {"frees-without-a-mark", "probe_lane leave=copy"},
              {"trusts-the-handle", "probe_lane leave=context"},
              {"marks-when-leaving", "probe_lane mode=hang"},
              {"returns-with-work-pending", "probe_lane mode=away"},
              {"keeps-a-destroyed-stream", "probe_lane mode=again"},
              {"releases-in-lane", "probe_lane mode=fill"}};
  for (const auto& row : rows) {
    SCOPED_TRACE(std::string(row.mutation) + ", " + row.probe);
    Environment environment = with(kLane, {{"CUPOOL_SIM_MEMORY", "1G"},
                                           {"CUPOOL_STATS", "off"},
                                           {"CUPOOL_TEST_MUTATION", row.mutation}});
    environment["LD_PRELOAD"] = tested_build().folder + "/tests/libcupool_mutable.so";
    const ProcessResult run = run_plain(row.probe, environment);
    EXPECT_NE(run.exit_code, 0) << run.describe();
  }
}

}  // namespace
}  // namespace preload
