// SPDX-License-Identifier: Apache-2.0
// CUPOOL_MODE=observe changes nothing that a program sees, serves nothing, and counts right.
#include "harness.h"

namespace preload {
namespace {

const Environment kObserve = {{"CUPOOL_MODE", "observe"}};

struct Observed {
  const char* probe;
  size_t reports;
};

class Observe : public testing::TestWithParam<Observed> {};

TEST_P(Observe, ChangesNothingAndServesNothing) {
  const PreloadedRun run = expect_same(GetParam().probe, 0, GetParam().reports, kObserve);
  for (const nlohmann::json& report : run.reports) {
    EXPECT_TRUE(report.contains("observe")) << report;
    EXPECT_EQ(report.at("backend"), "driver");
    EXPECT_EQ(report.at("free_mode"), "driver");
    EXPECT_TRUE(report.at("suggested_settings").empty());
    expect_identity(report);
  }
  EXPECT_EQ(run.counter("served_thread_cache_total") + run.counter("served_shared_cache_total") +
                run.counter("served_fresh_total"),
            0u);
  EXPECT_EQ(run.counter("frees_unwaited_busy_total"), 0u);
  EXPECT_GT(run.counter("served_passthrough_total"), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    All, Observe,
    testing::Values(Observed{"probe_runtime_shared", 1}, Observed{"probe_runtime_static", 1},
                    Observed{"probe_driver_linked", 1}, Observed{"probe_dlsym", 1},
                    Observed{"probe_getproc", 1}, Observed{"probe_plugin", 1},
                    Observed{"probe_pitch", 1}, Observed{"probe_alignment", 1},
                    Observed{"probe_errors", 1}, Observed{"probe_capture", 1},
                    Observed{"probe_capture_modes", 1}, Observed{"probe_contexts", 1},
                    Observed{"probe_pointer_queries", 1}, Observed{"probe_threads", 1},
                    Observed{"probe_fork mode=after", 1}, Observed{"probe_fork mode=both", 2}),
    [](const auto& row) {
      std::string name = row.param.probe;
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
      return name;
    });

TEST(ObserveCounts, AreThoseOfTheProgram) {
  expect_counts(expect_same("probe_runtime_shared", 0, 1, kObserve));
  expect_counts(expect_same("probe_driver_linked", 0, 1, kObserve));
}

// Ten rounds, each with five allocations and two frees that find the GPU busy for 130 ms; one block
// stays.
TEST(ObserveCounts, StallsBlocksAndBytesAreTheKnownOnes) {
  Environment extra = kObserve;
  extra["CUPOOL_SIM_MODE"] = "timed";
  extra["CUPOOL_SIM_GBPS"] = "0.04";
  const PreloadedRun run = expect_same("probe_observe rounds=10", 0, 1, extra);
  const nlohmann::json& seen = run.reports.at(0).at("observe");
  EXPECT_EQ(seen.at("malloc_calls_total"), 51u);
  EXPECT_EQ(seen.at("free_calls_total"), 50u);
  EXPECT_EQ(seen.at("free_busy_calls_total"), 20u);
  EXPECT_EQ(seen.at("free_unknown_calls_total"), 0u);
  EXPECT_EQ(seen.at("threads"), 1u);
  constexpr uint64_t kRounded = 3 * 106496u + (6u << 20);
  constexpr uint64_t kDevice = 4ull << 30;
  EXPECT_EQ(seen.at("live_peak_bytes"), 3 * 100000u + (5u << 20));
  EXPECT_EQ(seen.at("rounded_peak_bytes"), kRounded);
  EXPECT_EQ(seen.at("fresh_blocks"), 4u);
  // 2 % of the device may be pending beside the blocks.
  EXPECT_EQ(seen.at("pool_most_bytes"), kRounded + kDevice / 100 * 2 + kDevice % 100 * 2 / 100);
  // 20 stalls of about 130 ms, most of it in the free; all that remains is small beside them.
  EXPECT_GT(seen.at("free_busy_ns_total"), 500'000'000u);
  EXPECT_EQ(seen.at("free_busy_ns_total"), run.counter("free_wait_ns_total"));
  EXPECT_LE(seen.at("free_busy_ns_total"), seen.at("free_ns_total"));
  EXPECT_LT(seen.at("remaining_ns"), seen.at("legacy_ns").get<uint64_t>() / 2);
  EXPECT_EQ(seen.at("legacy_ns").get<uint64_t>(),
            seen.at("saved_at_most_ns").get<uint64_t>() + seen.at("remaining_ns").get<uint64_t>());
  EXPECT_EQ(seen.at("worth_it"), "yes");
  EXPECT_FALSE(seen.at("assumptions").empty());
  const nlohmann::json& gauges = run.reports[0].at("devices").at(0).at("gauges");
  EXPECT_EQ(gauges.at("leaked_blocks").at("current"), 1);
  EXPECT_EQ(gauges.at("leaked_bytes").at("current"), 100000);
}

// A driver without context events cannot be asked: that is said, and nothing is guessed.
TEST(ObserveCounts, AnOldDriverLeavesStallsUnknown) {
  const PreloadedRun run =
      expect_same("probe_observe rounds=3", 0, 1, old_driver("lib-no-ctx-event", kObserve));
  const nlohmann::json& seen = run.reports.at(0).at("observe");
  EXPECT_EQ(seen.at("free_unknown_calls_total"), 15u);
  EXPECT_EQ(seen.at("free_busy_calls_total"), 0u);
}

// No event is recorded while a stream captures (I3): frees in captures are unknown, not busy.
TEST(ObserveCounts, FreesDuringCapturesAreUnknown) {
  const PreloadedRun run = expect_same("probe_capture_modes", 0, 1, kObserve);
  const nlohmann::json& seen = run.reports.at(0).at("observe");
  EXPECT_GT(seen.at("free_unknown_calls_total").get<uint64_t>(), 0u);
  EXPECT_GT(seen.at("free_calls_total").get<uint64_t>(),
            seen.at("free_unknown_calls_total").get<uint64_t>());
}

TEST(Mode, OffIsAsDisabled) {
  const PreloadedRun run = expect_same("probe_runtime_shared", 0, 0, {{"CUPOOL_MODE", "off"}});
  EXPECT_TRUE(run.reports.empty());
}

// The parameters of kernels tell which free has to wait.
TEST(Mode, OffAsksNothingAtALaunch) {
  const ScratchFolder folder;
  const std::string file = folder.path() + "/calls";
  for (const char* mode : {"pool", "off"}) {
    const PreloadedRun run = run_preloaded("probe_host_memory case=busy",
                                           {{"CUPOOL_MODE", mode}, {"CUPOOL_SIM_CALLS", file}});
    EXPECT_EQ(run.process.exit_code, 0) << run.describe();
    const std::string calls = read_file(file);
    EXPECT_NE(calls.find("cuLaunchKernel"), std::string::npos) << calls;
    const bool asks = calls.find("cuFuncGetParamInfo") != std::string::npos;
    EXPECT_EQ(asks, std::string(mode) == "pool") << calls;
  }
}

}  // namespace
}  // namespace preload
