// Contract 9: a capture that is valid without us is valid with us, and right. Where the driver
// refuses an allocation and gives the capture up, it may be served instead: then all of it has to
// be right.
#include "harness.h"

namespace preload {
namespace {

class Row9 : public testing::TestWithParam<NamedEnvironment> {};

TEST_P(Row9, CapturesThatAreValidStayValid) {
  const ProcessResult plain = run_plain("probe_row9", GetParam().extra);
  const PreloadedRun run = run_preloaded("probe_row9", GetParam().extra);
  EXPECT_EQ(plain.exit_code, 0) << plain.describe();
  EXPECT_EQ(run.process.exit_code, 0) << run.describe();
  EXPECT_EQ(run.process.signal, 0) << run.describe();
  EXPECT_EQ(run.process.err, "");
  const std::vector<std::string> expected = lines_of(plain.out);
  const std::vector<std::string> ours = lines_of(run.process.out);
  ASSERT_EQ(expected.size(), 2u + 3 * 3 * 2 * 2 * 5 + 2);
  ASSERT_EQ(ours.size(), expected.size());
  size_t valid = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    if (contains(expected[i], "graph made")) {
      ++valid;
      EXPECT_EQ(ours[i], expected[i]);
    } else if (contains(ours[i], "graph made")) {
      EXPECT_TRUE(contains(ours[i], "wrong bytes 0")) << ours[i];
    } else {
      EXPECT_EQ(ours[i], expected[i]);
    }
  }
  EXPECT_GT(valid, 90u);
  for (const nlohmann::json& report : run.reports) expect_identity(report);
}

INSTANTIATE_TEST_SUITE_P(
    All, Row9,
    testing::Values(NamedEnvironment{"Auto", {}},
                    NamedEnvironment{"Ordered", {{"CUPOOL_FREE_MODE", "ordered"}}},
                    NamedEnvironment{"Sync", {{"CUPOOL_FREE_MODE", "sync"}}},
                    NamedEnvironment{"Malloc", {{"CUPOOL_BACKEND", "malloc"}}},
                    NamedEnvironment{"DefaultPool", {{"CUPOOL_POOL", "default"}}},
                    NamedEnvironment{"LittlePending", {{"CUPOOL_MAX_PENDING", "2M"}}},
                    NamedEnvironment{"NothingCached", {{"CUPOOL_MAX_CACHED", "0"}}},
                    NamedEnvironment{"Timed", {{"CUPOOL_SIM_MODE", "timed"}}},
                    NamedEnvironment{"WithoutContextEvents", old_driver("lib-no-ctx-event")},
                    NamedEnvironment{"WithoutPools", {{"CUPOOL_SIM_POOLS", "0"}}}),
    [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace preload
