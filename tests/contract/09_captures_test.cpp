// SPDX-License-Identifier: Apache-2.0
// Contract 9: no capture is invalidated by us, and none survives what the driver would have
// refused.
#include "harness.h"

namespace preload {
namespace {

class Captures : public testing::TestWithParam<NamedEnvironment> {};

TEST_P(Captures, EndAsWithoutUs) {
  const PreloadedRun run = expect_same("probe_capture_modes", 0, 1, GetParam().extra);
  const std::vector<std::string> lines = lines_of(run.process.out);
  ASSERT_EQ(lines.size(), 2u + 3 * 3 * 2 * 2 * 5 + 2);
  size_t valid = 0;
  for (const std::string& line : lines) {
    if (!contains(line, "graph made")) continue;
    ++valid;
    if (contains(line, "wrong bytes")) {
      EXPECT_TRUE(contains(line, "wrong bytes 0")) << line;
    }
  }
  EXPECT_GT(valid, 90u);
  for (const nlohmann::json& report : run.reports) expect_identity(report);
}

// By each interface, a shared and a static runtime, whose calls come by different routes.
TEST_P(Captures, EachCallIsAnsweredAsWithoutUs) {
  for (const char* probe : {"probe_capture_calls_shared", "probe_capture_calls_static"}) {
    const PreloadedRun run = expect_same(probe, 0, 1, GetParam().extra);
    const std::vector<std::string> lines = lines_of(run.process.out);
    ASSERT_EQ(lines.size(), 17u * 3 * 2);
    size_t invalidated = 0;
    for (const std::string& line : lines) invalidated += contains(line, "end 901") ? 1 : 0;
    EXPECT_GT(invalidated, 30u);
    for (const nlohmann::json& report : run.reports) expect_identity(report);
  }
}

// I3. Where two contexts or two threads have captures, and a stream of one joins that of another.
TEST_P(Captures, OfSeveralContextsStayValid) {
  const PreloadedRun run = expect_same("probe_capture_contexts", 0, 1,
                                       with({{"CUPOOL_SIM_DEVICES", "2"}}, GetParam().extra));
  EXPECT_EQ(run.process.out.find("end 901"), std::string::npos) << run.describe();
  for (const nlohmann::json& report : run.reports) expect_identity(report);
}

INSTANTIATE_TEST_SUITE_P(
    All, Captures,
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

// Contract 9: allocations and frees are answered, and captures end, as without us.
TEST(CapturesOfEachBackend, EndAsWithoutUs) {
  for (const char* backend : {"pool", "malloc"}) {
    SCOPED_TRACE(backend);
    const PreloadedRun result = expect_same("probe_capture", 0, 1, {{"CUPOOL_BACKEND", backend}});
    EXPECT_TRUE(contains(result.process.out, "graph lost")) << result.describe();
    EXPECT_TRUE(contains(result.process.out, "graph made")) << result.describe();
    for (const nlohmann::json& report : result.reports) expect_identity(report);
  }
}

}  // namespace
}  // namespace preload
