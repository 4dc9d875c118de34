// SPDX-License-Identifier: Apache-2.0
// Contracts 1 and 2 beside programmatic dependent launches, which may begin before the kernel
// before them has ended, also across events of their stream.
#include "harness.h"

namespace preload {
namespace {

const Environment kLate = {{"CUPOOL_POOL_START", "first"}, {"CUPOOL_SIM_MODE", "late"}};

std::string probe(const std::string& way) {
  return "probe_dependent_launches " + way;
}

class DependentLaunches : public testing::TestWithParam<const char*> {};

TEST_P(DependentLaunches, BehindAFreeComeBehindTheWorkBeforeIt) {
  for (const char* lane : {"1", "0"}) {
    SCOPED_TRACE(std::string("lane ") + lane);
    const PreloadedRun run =
        expect_same(probe(GetParam()), 0, 1, with(kLate, {{"CUPOOL_LANE", lane}}));
    expect_counts(run);
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, DependentLaunches,
                         testing::Values("free", "free_legacy", "free_per_thread", "free_elsewhere",
                                         "second_free", "block", "block_legacy", "default_streams"),
                         [](const auto& row) { return std::string(row.param); });

// The driver hands the block out as well, and does not order the launch (measured): that is the
// program's affair. Nothing of cupool's makes it worse.
TEST(DependentLaunchesOfServedMemory, ComeBehindItsLastOwner) {
  const ProcessResult plain = run_plain(probe("stream_ordered"), kLate);
  EXPECT_NE(plain.exit_code, 0) << "the simulated device overlaps: " << plain.describe();
  const PreloadedRun run = run_preloaded(
      probe("stream_ordered"), with(kLate, {{"CUPOOL_ASYNC", "serve"}, {"PROBE_REUSED", "1"}}));
  EXPECT_EQ(run.process.exit_code, 0) << run.describe();
  EXPECT_FALSE(contains(run.process.out, "reused 0")) << run.describe();
}

// A lane hands the block out while the kernel before still writes it.
TEST(DependentLaunchesInALane, AreTested) {
  const PreloadedRun run = run_preloaded(probe("block"), with(kLate, {{"PROBE_REUSED", "1"}}));
  EXPECT_TRUE(contains(run.process.out, "reused 6")) << run.describe();
}

// Contract 2 is not promised by `ordered`, so that the tests above can fail.
TEST(DependentLaunchesInOrderedMode, OverlapAsTheProgramPermits) {
  const PreloadedRun run = run_preloaded(
      probe("free"), with(kLate, {{"CUPOOL_FREE_MODE", "ordered"}, {"CUPOOL_LANE", "0"}}));
  EXPECT_TRUE(contains(run.process.out, "wrong 6")) << run.describe();
}

TEST(DependentLaunchesMutation, IsFound) {
  if (!tested_build().sanitizer.empty()) GTEST_SKIP() << "no such engine with a sanitizer";
  const struct {
    const char* mutation;
    const char* way;
    const char* lane;
  } rows[] = {{"launches-overlap", "block", "1"},
              {"launches-overlap", "free", "1"},
              {"launches-overlap", "stream_ordered", "1"},
              {"overlaps-work-before-a-free", "free", "0"},
              {"overlaps-work-before-a-free", "free_legacy", "0"},
              {"overlaps-work-before-a-free", "free_elsewhere", "0"},
              {"forgets-newer-frees", "second_free", "0"},
              {"trusts-a-default-handle", "default_streams", "1"}};
  for (const auto& row : rows) {
    SCOPED_TRACE(std::string(row.mutation) + ", " + row.way);
    Environment environment = with(kLate, {{"CUPOOL_STATS", "off"},
                                           {"CUPOOL_LANE", row.lane},
                                           {"CUPOOL_ASYNC", "serve"},
                                           {"CUPOOL_TEST_MUTATION", row.mutation}});
    environment["LD_PRELOAD"] = tested_build().folder + "/tests/libcupool_mutable.so";
    const ProcessResult run = run_plain(probe(row.way), environment);
    EXPECT_NE(run.exit_code, 0) << run.describe();
  }
}

}  // namespace
}  // namespace preload
