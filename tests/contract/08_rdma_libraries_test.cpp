// SPDX-License-Identifier: Apache-2.0
// Contract 8, its part without IPC: libraries of CUPOOL_BYPASS_LIBS have the driver's plain memory,
// and an agent library that is loaded late makes later memory plain and frees wait.
#include "harness.h"

namespace preload {
namespace {

// Blocks of the pools then say that they are not capable of legacy IPC, by which the probes tell
// them.
const std::pair<std::string, std::string> kNoSharing{"CUPOOL_IPC", "0"};

TEST(BypassedLibraries, NamedLibrariesHavePlainMemory) {
  // A whole name before its ending, or before a version or a dash.
  for (const char* list : {"libnet", "libother, libnet ,libmore", "libnet_shared,libnet_static"}) {
    const PreloadedRun run =
        run_preloaded("probe_bypass", {{"CUPOOL_BYPASS_LIBS", list}, kNoSharing});
    EXPECT_EQ(run.process.out,
              "shared: program plain 0, library plain 120 of 120\n"
              "static: program plain 0, library plain 120 of 120\n")
        << list << run.describe();
    EXPECT_EQ(run.process.err, "");
    ASSERT_EQ(run.reports.size(), 1u);
    EXPECT_GE(run.counter("served_passthrough_total"), 240u);
    expect_identity(run.reports[0]);
  }
}

TEST(BypassedLibraries, TheDefaultNamesNccl) {
  const PreloadedRun run = run_preloaded("probe_bypass library=libnccl", {kNoSharing});
  EXPECT_TRUE(contains(run.process.out, "shared: program plain 0, library plain 120 of 120"))
      << run.describe();
  EXPECT_EQ(run.process.exit_code, 0) << run.describe();
}

// What was known of a library ends with it: other code may be mapped at its place.
TEST(BypassedLibraries, IsNotRememberedOfALibraryThatIsGone) {
  Environment extra{{"CUPOOL_POOL_START", "first"}, kNoSharing};
  // What a static runtime has taken is out of reach once its library is closed.
  if (tested_build().sanitizer == "address") extra["ASAN_OPTIONS"] = "detect_leaks=0";
  for (const char* runtime : {"shared", "static"}) {
    SCOPED_TRACE(runtime);
    const PreloadedRun run = run_preloaded(std::string("probe_unload runtime=") + runtime, extra);
    EXPECT_EQ(run.process.exit_code, 0) << run.describe();
    EXPECT_EQ(run.process.out, "at the same place again, wrong 0\n") << run.describe();
  }
}

TEST(BypassedLibraries, OthersAndNobodyArePooled) {
  // A beginning of a name that goes on with a letter is another library; an empty list is none.
  for (const char* list : {"libne", "libnetwork", "ibnet", ""}) {
    const PreloadedRun run =
        run_preloaded("probe_bypass", {{"CUPOOL_BYPASS_LIBS", list}, kNoSharing});
    EXPECT_EQ(run.process.out,
              "shared: program plain 0, library plain 0 of 120\n"
              "static: program plain 0, library plain 0 of 120\n")
        << list << run.describe();
    EXPECT_EQ(run.process.err, "");
  }
}

struct AgentsSetting {
  const char* name;
  Environment extra;
  const char* backend;
  const char* free_mode;
  const char* before;
  const char* after;
};

class RdmaLibraries : public testing::TestWithParam<AgentsSetting> {};

TEST_P(RdmaLibraries, LoadedLate) {
  const AgentsSetting& setting = GetParam();
  Environment environment = setting.extra;
  environment.insert(kNoSharing);
  const PreloadedRun run = run_preloaded("probe_agents", environment);
  EXPECT_EQ(run.process.exit_code, 0) << run.describe();
  EXPECT_EQ(run.process.err, "");
  EXPECT_EQ(run.process.out,
            std::string("before: ") + setting.before + "\nafter: " + setting.after + "\n");
  ASSERT_EQ(run.reports.size(), 1u);
  const nlohmann::json& report = run.reports[0];
  EXPECT_EQ(report.at("backend"), setting.backend) << report.dump(1).substr(0, 1500);
  EXPECT_EQ(report.at("free_mode"), setting.free_mode) << report.dump(1).substr(0, 1500);
  expect_identity(report);
}

// What the user has asked for by name stays.
INSTANTIATE_TEST_SUITE_P(All, RdmaLibraries,
                         testing::Values(AgentsSetting{"Auto",
                                                       {},
                                                       "malloc",
                                                       "sync",
                                                       "plain 0, free waits 0",
                                                       "plain 30 of 30, free waits 1"},
                                         AgentsSetting{"PoolByName",
                                                       {{"CUPOOL_BACKEND", "pool"}},
                                                       "pool",
                                                       "sync",
                                                       "plain 0, free waits 0",
                                                       "plain 0 of 30, free waits 1"},
                                         AgentsSetting{"OrderedByName",
                                                       {{"CUPOOL_FREE_MODE", "ordered"}},
                                                       "malloc",
                                                       "ordered",
                                                       "plain 0, free waits 0",
                                                       "plain 30 of 30, free waits 0"},
                                         AgentsSetting{"Malloc",
                                                       {{"CUPOOL_BACKEND", "malloc"}},
                                                       "malloc",
                                                       "sync",
                                                       "plain 1, free waits 0",
                                                       "plain 30 of 30, free waits 1"}),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(RdmaLibraryNames, AnyOtherLibraryChangesNothing) {
  const PreloadedRun run = run_preloaded("probe_agents library=libnet_shared.so", {kNoSharing});
  EXPECT_EQ(run.process.out, "before: plain 0, free waits 0\nafter: plain 0 of 30, free waits 0\n")
      << run.describe();
}

}  // namespace
}  // namespace preload
