// SPDX-License-Identifier: Apache-2.0
// After cupool has stepped aside (docs/compatibility.md): memory that it holds is not lost to the
// program, and frees wait as the driver's do.
#include "harness.h"

namespace preload {
namespace {

PreloadedRun expect_same_but_a_warning(const std::string& probe, const Environment& extra) {
  const ProcessResult plain = run_plain(probe, extra);
  const PreloadedRun run = run_preloaded(probe, extra);
  EXPECT_EQ(plain.exit_code, 0) << plain.describe();
  EXPECT_EQ(run.process.exit_code, 0) << run.describe();
  EXPECT_EQ(run.process.out, plain.out) << run.describe();
  EXPECT_EQ(lines_of(run.process.err).size(), 1u) << run.describe();
  EXPECT_TRUE(contains(run.process.err, "the driver serves its memory from now on"));
  for (const nlohmann::json& report : run.reports) expect_identity(report);
  return run;
}

class StepAside : public testing::TestWithParam<NamedEnvironment> {};

// Contracts 2, 4 and 5, the judge looking on.
TEST_P(StepAside, FreedMemoryIsTheProgramsAgain) {
  const Environment device = {{"CUPOOL_SIM_MEMORY", "1G"}, {"CUPOOL_SIM_JUDGE", "1"}};
  const PreloadedRun run =
      expect_same_but_a_warning("probe_step_aside", with(device, GetParam().extra));
  EXPECT_TRUE(contains(run.process.out, "half_of_the_device=0"));
}

// Contract 2.
TEST_P(StepAside, AFreeWaitsForCopies) {
  if (GetParam().extra.count("CUPOOL_FREE_MODE") != 0) return;  // `ordered`: promised to nobody
  expect_same_but_a_warning("probe_step_aside copy=1", GetParam().extra);
}

// Contracts 2 and 10, the judge looking on.
TEST_P(StepAside, GreenContextsKeepThePrimaryOneAndItsMemory) {
  if (GetParam().extra.count("LD_LIBRARY_PATH") != 0) return;  // streams of one need CUDA 12.5
  const PreloadedRun run =
      expect_same_but_a_warning("probe_green", with({{"CUPOOL_SIM_JUDGE", "1"}}, GetParam().extra));
  EXPECT_TRUE(contains(run.process.out, "wrong bytes: 0"));
}

INSTANTIATE_TEST_SUITE_P(
    All, StepAside,
    testing::Values(NamedEnvironment{"Auto", {}},
                    NamedEnvironment{"Ordered", {{"CUPOOL_FREE_MODE", "ordered"}}},
                    NamedEnvironment{"Plain", {{"CUPOOL_BACKEND", "malloc"}}},
                    NamedEnvironment{"DefaultPool", {{"CUPOOL_POOL", "default"}}},
                    NamedEnvironment{"WithoutContextEvents", old_driver("lib-no-ctx-event")},
                    NamedEnvironment{"Early", {{"CUPOOL_SIM_MODE", "early"}}}),
    [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace preload
