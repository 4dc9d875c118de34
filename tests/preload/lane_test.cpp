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
      EXPECT_EQ(early_of(probe, environment), GetParam().leaves ? 4 : 6);
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
