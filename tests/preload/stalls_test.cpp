// SPDX-License-Identifier: Apache-2.0
// What is claimed of stalls: cupool counts by the rule of observed runs (stats/stall.h), and says
// no more than an observed run of the same program. All frees of a report add up.
#include "harness.h"

namespace preload {
namespace {

// Work takes two milliseconds, by the clock.
const Environment kTimed = {
    {"CUPOOL_SIM_MODE", "timed"}, {"CUPOOL_SIM_GBPS", "2"}, {"CUPOOL_POOL_START", "first"}};

uint64_t avoided(const std::string& probe, const Environment& more) {
  return run_preloaded(probe, with(kTimed, more)).counter("frees_unwaited_busy_total");
}

uint64_t observed(const std::string& probe) {
  const PreloadedRun run = run_preloaded(probe, with(kTimed, {{"CUPOOL_MODE", "observe"}}));
  EXPECT_EQ(run.reports.size(), 1u) << run.describe();
  return run.reports.at(0).at("observe").at("free_busy_calls_total");
}

const NamedEnvironment kWays[] = {{"lane", {{"CUPOOL_LANE", "1"}}},
                                  {"fences", {{"CUPOOL_LANE", "0"}}},
                                  {"ordered", {{"CUPOOL_FREE_MODE", "ordered"}}}};

class Stalls : public testing::TestWithParam<NamedEnvironment> {};

TEST_P(Stalls, AProgramWithoutWorkHasNone) {
  const std::string probe = "probe_stalls rounds=6000 work=none";
  EXPECT_EQ(avoided(probe, GetParam().extra), 0u);
  EXPECT_EQ(avoided(probe, with(GetParam().extra, {{"CUPOOL_SIM_MODE", "late"}})), 0u);
}

TEST_P(Stalls, AreAvoidedByAllFreesBehindLongWork) {
  const uint64_t frees = avoided("probe_stalls rounds=400", GetParam().extra);
  EXPECT_LE(frees, 400u);
  EXPECT_GE(frees, 300u) << "all but the last, which nobody looked at again";
}

TEST_P(Stalls, AreNoneWhereTheProgramWaitsBeforeEachFree) {
  EXPECT_EQ(avoided("probe_stalls rounds=50 waits=100", GetParam().extra), 0u);
}

INSTANTIATE_TEST_SUITE_P(Ways, Stalls, testing::ValuesIn(kWays),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(StallsClaimed, AreNeverMoreThanAnObservedRunFinds) {
  for (int seed = 1; seed <= 6; ++seed) {
    const std::string probe =
        "probe_stalls rounds=80 work=random streams=" + std::to_string(seed % 2 + 1) +
        " waits=" + std::to_string(seed * 4) + " seed=" + std::to_string(seed);
    SCOPED_TRACE(probe);
    const uint64_t most = observed(probe);
    EXPECT_GT(most, 0u);
    for (const NamedEnvironment& way : kWays) {
      EXPECT_LE(avoided(probe, way.extra), most) << way.name;
    }
  }
}

// Each free counts in one way: it waited, for one reason, or the driver answered it, or it was no
// free of a block; all others did not wait.
TEST(FreesOfAReport, AddUp) {
  for (const char* probe :
       {"probe_stalls rounds=300", "probe_stalls rounds=100 work=random streams=3",
        "probe_runtime_shared", "probe_driver_linked", "probe_errors", "probe_capture",
        "probe_host_side", "probe_threads", "probe_contexts", "probe_oom", "probe_stream_free",
        "probe_step_aside"}) {
    for (const char* mode : {"auto", "sync", "ordered"}) {
      SCOPED_TRACE(std::string(probe) + ", " + mode);
      const PreloadedRun run =
          run_preloaded(probe, {{"CUPOOL_FREE_MODE", mode}, {"CUPOOL_MAX_PENDING", "1M"}});
      for (const nlohmann::json& report : run.reports) {
        for (const nlohmann::json& device : report.at("devices")) {
          const auto count = [&device](const char* key) {
            return device.at("counters").at(key).get<uint64_t>();
          };
          uint64_t reasons = 0;
          for (const char* reason :
               {"sync", "host_copy", "managed", "zero_copy", "pending_limit", "order"}) {
            reasons += count((std::string("free_waits_") + reason + "_total").c_str());
          }
          EXPECT_EQ(count("free_waits_total"), reasons);
          const uint64_t others = count("free_waits_total") + count("free_passthrough_total") +
                                  count("free_foreign_total") + count("free_null_total") +
                                  count("free_rejected_total");
          EXPECT_LE(others + count("frees_unwaited_busy_total"), count("free_calls_total"));
        }
      }
    }
  }
}

}  // namespace
}  // namespace preload
