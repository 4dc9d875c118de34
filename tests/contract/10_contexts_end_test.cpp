// SPDX-License-Identifier: Apache-2.0
// Contract 10: contexts are destroyed and devices reset, again and again; what belonged to them is
// gone, nothing grows, and allocation works afterwards.
#include <sstream>

#include "harness.h"

namespace preload {
namespace {

long grown_kib(const std::string& out) {
  const size_t at = out.find("grown_kib=");
  return at == std::string::npos ? 1 << 30 : std::strtol(out.c_str() + at + 10, nullptr, 10);
}

std::string without_growth(const std::string& out) {
  std::string kept;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, 10, "grown_kib=") != 0) kept += line + "\n";
  }
  return kept;
}

class ContextsComeAndGo : public testing::TestWithParam<NamedEnvironment> {};

TEST_P(ContextsComeAndGo, WithoutGrowth) {
  constexpr uint64_t kRounds = 100;
  for (const char* mode : {"resets", "contexts", "primary"}) {
    SCOPED_TRACE(mode);
    const ScratchFolder folder;
    const std::string probe = std::string("probe_context_churn rounds=100 mode=") + mode;
    Environment extra = GetParam().extra;
    extra["CUPOOL_SIM_CALLS"] = folder.path() + "/plain";
    const ProcessResult plain = run_plain(probe, extra);
    extra["CUPOOL_SIM_CALLS"] = folder.path() + "/ours";
    const PreloadedRun run = run_preloaded(probe, extra);
    EXPECT_EQ(plain.exit_code, 0) << plain.describe();
    EXPECT_EQ(run.process.exit_code, 0) << run.describe();
    EXPECT_EQ(run.process.signal, 0) << run.describe();
    EXPECT_EQ(run.process.err, "");
    EXPECT_EQ(without_growth(run.process.out), without_growth(plain.out));
    if (!tested_build().has_memory_sanitizer()) {
      // A context that was created and destroyed leaves an empty object behind, with the caches of
      // two threads. One that comes back under its handle leaves nothing.
      const bool created = std::string(mode) == "contexts";
      EXPECT_LT(grown_kib(run.process.out), grown_kib(plain.out) + (created ? 2 * 67 * 16 : 512))
          << run.describe();
    }
    auto ours = calls_in(folder.path() + "/ours");
    auto theirs = calls_in(folder.path() + "/plain");
    EXPECT_LE(ours["cuMemPoolCreate"], 2u);
    // One stream of ours for each context and thread that took fresh memory in it: a thread that
    // ended gave its own to the next. On a device that is nearly full each has a spare. Decay looks
    // into some of the contexts, a few times a second.
    constexpr uint64_t kLookedInto = 32;
    const uint64_t of_each = extra.count("CUPOOL_SIM_MEMORY") != 0 ? 2 : 1;
    const uint64_t streams = ours["cuStreamCreate"] + ours["cuStreamCreateWithPriority"];
    const uint64_t own = theirs["cuStreamCreate"] + theirs["cuStreamCreateWithPriority"];
    EXPECT_GE(own, kRounds);
    EXPECT_LE(streams, own + 4 * kRounds * of_each + kLookedInto);
    ASSERT_EQ(run.reports.size(), 1u);
    EXPECT_GT(run.counter("context_lost_bytes_total"), kRounds * (3u << 20));
    for (const nlohmann::json& report : run.reports) expect_identity(report);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ContextsComeAndGo,
    testing::Values(NamedEnvironment{"Auto", {}},
                    NamedEnvironment{"Sync", {{"CUPOOL_FREE_MODE", "sync"}}},
                    NamedEnvironment{"Malloc", {{"CUPOOL_BACKEND", "malloc"}}},
                    NamedEnvironment{"DefaultPool", {{"CUPOOL_POOL", "default"}}},
                    NamedEnvironment{"SmallDevice", {{"CUPOOL_SIM_MEMORY", "128M"}}}),
    [](const auto& row) { return std::string(row.param.name); });

// Contract 10: contexts end, the device is reset, allocation works again.
TEST(Contexts, DeviceResetThenAllocateAgain) {
  const PreloadedRun result = expect_same("probe_contexts mode=reset");
  EXPECT_GE(result.counter("context_lost_bytes_total"), 3u << 20);
}

TEST(Contexts, TwoContexts) {
  const PreloadedRun result = expect_same("probe_contexts mode=contexts");
  expect_counts(result);
  EXPECT_GE(result.counter("context_lost_bytes_total"), 3u << 20);
}

TEST(Contexts, PrimaryContextReleased) {
  expect_counts(expect_same("probe_contexts mode=primary"));
}

TEST(Contexts, ContextMadeForOpenGl) {
  expect_counts(expect_same("probe_contexts mode=gl"));
}

TEST(Contexts, PrimaryContextReleasedAndRetainedAgainByOthers) {
  for (const char* start : {"first", "background"}) {
    const std::string probe = "probe_contexts mode=again rounds=" + std::to_string(often(100));
    expect_counts(expect_same(probe, 0, 1, {{"CUPOOL_POOL_START", start}}));
  }
}

// I8.
TEST(Contexts, HandlesComeAgain) {
  expect_counts(expect_same("probe_contexts mode=handles", 0, 1, {{"CUPOOL_POOL_START", "first"}}));
}

// I8.
TEST(Contexts, PrimaryContextRetainedAndReleasedBesideAllocations) {
  expect_counts(expect_same("probe_contexts mode=busy", 0, 1, {{"CUPOOL_POOL_START", "first"}}));
}

}  // namespace
}  // namespace preload
