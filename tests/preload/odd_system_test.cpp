// SPDX-License-Identifier: Apache-2.0
// Old and odd systems (design.md, Contract: "fail open"): drivers without pools or context events,
// drivers of other versions, devices that say they have pools and refuse them. Right results each,
// and at most one warning.
#include <algorithm>

#include "harness.h"

namespace preload {
namespace {

class OddSystem : public testing::TestWithParam<NamedEnvironment> {};

TEST_P(OddSystem, GivesRightResultsAndOneWarningAtMost) {
  for (const char* probe : {"probe_runtime_shared threads=3", "probe_runtime_static",
                            "probe_driver_linked", "probe_pitch", "probe_pointer_queries",
                            "probe_context_churn mode=primary rounds=6", "probe_threads"}) {
    SCOPED_TRACE(probe);
    const ProcessResult plain = run_plain(probe, GetParam().extra);
    const PreloadedRun run = run_preloaded(probe, GetParam().extra);
    EXPECT_EQ(plain.exit_code, 0) << plain.describe();
    EXPECT_EQ(run.process.exit_code, plain.exit_code) << run.describe();
    EXPECT_EQ(run.process.signal, 0) << run.describe();
    // What memory is good for besides is the queries' own test.
    if (std::string(probe) != "probe_pointer_queries" &&
        std::string(probe).find("context_churn") == std::string::npos) {
      EXPECT_EQ(run.process.out, plain.out);
    }
    EXPECT_LE(std::count(run.process.err.begin(), run.process.err.end(), '\n'), 1)
        << run.process.err;
    ASSERT_EQ(run.reports.size(), 1u);
    expect_identity(run.reports[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, OddSystem,
    testing::Values(
        NamedEnvironment{"Driver11_2", {{"CUPOOL_SIM_DRIVER_VERSION", "11020"}}},
        NamedEnvironment{"Driver11_8", {{"CUPOOL_SIM_DRIVER_VERSION", "11080"}}},
        NamedEnvironment{"Driver12_2", {{"CUPOOL_SIM_DRIVER_VERSION", "12020"}}},
        NamedEnvironment{"Driver12_4", old_driver("lib-no-ctx-event")},
        NamedEnvironment{"Driver12_2WithoutContextEvents",
                         old_driver("lib-no-ctx-event", {{"CUPOOL_SIM_DRIVER_VERSION", "12020"}})},
        NamedEnvironment{"NoPools", {{"CUPOOL_SIM_POOLS", "0"}}},
        NamedEnvironment{"NoPoolsNoContextEvents",
                         old_driver("lib-no-ctx-event", {{"CUPOOL_SIM_POOLS", "0"}})},
        NamedEnvironment{"PoolCreationRefused", {{"CUPOOL_SIM_FAIL", "cuMemPoolCreate:*=801"}}},
        NamedEnvironment{"PoolCreationFails", {{"CUPOOL_SIM_FAIL", "cuMemPoolCreate:*=999"}}},
        NamedEnvironment{"PoolMemoryRefused",
                         {{"CUPOOL_SIM_FAIL", "cuMemAllocFromPoolAsync:*=801"}}},
        NamedEnvironment{"AttributesRefused", {{"CUPOOL_SIM_FAIL", "cuMemPoolSetAttribute:*=801"}}},
        NamedEnvironment{"AttributesUnknown", {{"CUPOOL_SIM_FAIL", "cuMemPoolSetAttribute:*=1"}}},
        NamedEnvironment{"AttributesUnreadable",
                         {{"CUPOOL_SIM_FAIL", "cuMemPoolGetAttribute:*=801"}}},
        NamedEnvironment{"TrimRefused", {{"CUPOOL_SIM_FAIL", "cuMemPoolTrimTo:*=801"}}},
        NamedEnvironment{"ContextEventsRefused", {{"CUPOOL_SIM_FAIL", "cuCtxRecordEvent:*=801"}}}),
    [](const auto& row) { return std::string(row.param.name); });

// Refused pools are as good as none: the cache works over plain memory.
TEST(OddSystem, RefusedPoolsLeaveTheCache) {
  for (const char* fault : {"cuMemPoolCreate:*=801", "cuMemAllocFromPoolAsync:*=801"}) {
    const PreloadedRun run = run_preloaded("probe_runtime_shared", {{"CUPOOL_SIM_FAIL", fault}});
    ASSERT_EQ(run.reports.size(), 1u) << run.describe();
    EXPECT_EQ(run.reports[0].at("backend"), "malloc");
    EXPECT_GT(run.counter("served_shared_cache_total") + run.counter("served_thread_cache_total"),
              0u);
    EXPECT_EQ(run.counter("served_passthrough_total"), 0u);
  }
}

}  // namespace
}  // namespace preload
