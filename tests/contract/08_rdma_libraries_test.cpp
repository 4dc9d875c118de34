// SPDX-License-Identifier: Apache-2.0
// Contract 8, its part without IPC: libraries of CUPOOL_BYPASS_LIBS have the driver's plain memory,
// and an agent library that is loaded late makes later memory plain and frees wait.
#include <map>
#include <sstream>

#include "harness.h"

namespace preload {
namespace {

// Blocks of the pools then say that they are not capable of legacy IPC, by which the probes tell
// them.
const std::pair<std::string, std::string> kNoSharing{"CUPOOL_IPC", "0"};

TEST(BypassedLibraries, NamedLibrariesHavePlainMemory) {
  // A whole name before its ending, or before a version or a dash.
  for (const char* list : {"libnet", "libother, libnet ,libmore", "libnet_shared,libnet_static",
                           " , ,libnet_shared.so,libnet_static.so"}) {
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

// Nor page-locked memory that the program has freed: they may keep it registered.
TEST(BypassedLibraries, GetPageLockedMemoryOfTheDriver) {
  const auto run = [](const char* probe, const char* list) {
    return run_preloaded(probe, {{"CUPOOL_BYPASS_LIBS", list}, {"CUPOOL_SIM_MODE", "early"}})
        .process.out;
  };
  EXPECT_EQ(run("probe_bypass pinned=1", "libnet"), "shared: 0 of 20\nstatic: 0 of 20\n");
  EXPECT_EQ(run("probe_bypass pinned=1", ""), "shared: 20 of 20\nstatic: 20 of 20\n");
  // What a library of the toolkit allocates is its own, too, where its runtime shows that it asks.
  EXPECT_TRUE(contains(run("probe_bypass pinned=1 library=libnccl-net", ""), "static: 0 of 20\n"));
}

// The table of call sites knows them, too, while allocations are sampled.
TEST(BypassedLibraries, StayTheDriversWhileCallSitesAreSampled) {
  const PreloadedRun run = run_preloaded(
      "probe_bypass", {{"CUPOOL_BYPASS_LIBS", "libnet"}, {"CUPOOL_SITES", "1"}, kNoSharing});
  EXPECT_EQ(run.process.out,
            "shared: program plain 0, library plain 120 of 120\n"
            "static: program plain 0, library plain 120 of 120\n")
      << run.describe();
}

TEST(BypassedLibraries, TheDefaultNamesNccl) {
  const PreloadedRun run = run_preloaded("probe_bypass library=libnccl-net", {kNoSharing});
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
  const nlohmann::json& reason = report.at("mode_reason");
  ASSERT_TRUE(reason.is_object()) << report.dump(1).substr(0, 1500);
  EXPECT_EQ(reason.at("library"), "libmpi.so.40");
  EXPECT_EQ(reason.at("free_mode"), setting.free_mode);
  EXPECT_EQ(reason.at("backend"), setting.backend);
  const auto requested = [&setting](const char* name) {
    const auto found = setting.extra.find(name);
    return found == setting.extra.end() ? "auto" : found->second;
  };
  EXPECT_EQ(report.at("requested").at("free_mode"), requested("CUPOOL_FREE_MODE"));
  EXPECT_EQ(report.at("requested").at("backend"), requested("CUPOOL_BACKEND"));
  const bool plain = report.at("backend") == "malloc";
  EXPECT_EQ(report.at("suggested_settings").empty(), plain) << "advice on pools that are not used";
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

TEST(RdmaLibraryNames, TheTextReportSaysWhatTheLibraryDecided) {
  const std::string text =
      run_with_library("probe_agents", {kNoSharing, {"CUPOOL_STATS", "text,full"}}).err;
  EXPECT_TRUE(
      contains(text,
               "\nRequested: free mode auto, backend auto. In force: free mode sync, backend "
               "malloc (plain memory), because libmpi.so.40 is loaded\n"))
      << text;
  EXPECT_TRUE(
      contains(text, "at their defaults; not in force as set: CUPOOL_FREE_MODE, CUPOOL_BACKEND\n"))
      << text;
  EXPECT_FALSE(contains(text, "Suggested")) << text;
}

// The program itself has settled what the library would: nothing differs, but the library is known.
TEST(RdmaLibraryNames, IsKnownBesideSettingsThatLeaveNothingToDecide) {
  const Environment decided{{"CUPOOL_FREE_MODE", "sync"}, {"CUPOOL_BACKEND", "malloc"}};
  const PreloadedRun run = run_preloaded("probe_agents", decided);
  ASSERT_EQ(run.reports.size(), 1u);
  EXPECT_EQ(run.reports[0].at("mode_reason").at("library"), "libmpi.so.40");
  const std::string text = run_with_library("probe_agents", decided).err;
  EXPECT_FALSE(contains(text, "Requested")) << text;
}

TEST(RdmaLibraryNames, AnObservedRunSaysWhatTheyWouldDecide) {
  const PreloadedRun run = run_preloaded("probe_agents", {{"CUPOOL_MODE", "observe"}});
  ASSERT_EQ(run.reports.size(), 1u);
  const nlohmann::json& report = run.reports[0];
  EXPECT_EQ(report.at("free_mode"), "driver");
  EXPECT_EQ(report.at("mode_reason").at("free_mode"), "sync");
  EXPECT_EQ(report.at("mode_reason").at("backend"), "malloc");
  EXPECT_TRUE(contains(report.at("observe").dump(), "Under cupool: free mode sync")) << report;
  EXPECT_TRUE(contains(report.at("observe").dump(), "waits as now")) << report;
  EXPECT_FALSE(contains(report.at("observe").dump(), "no free waits")) << report;
}

TEST(RdmaLibraryNames, WithoutOneThereIsNoReason) {
  const PreloadedRun run = run_preloaded("probe_runtime_shared");
  ASSERT_EQ(run.reports.size(), 1u);
  EXPECT_TRUE(run.reports[0].at("mode_reason").is_null()) << run.reports[0].at("mode_reason");
  EXPECT_EQ(run.reports[0].at("requested").at("free_mode"), "auto");
}

TEST(RdmaLibraryNames, AnyOtherLibraryChangesNothing) {
  const PreloadedRun run = run_preloaded("probe_agents library=libnet_shared.so", {kNoSharing});
  EXPECT_EQ(run.process.out, "before: plain 0, free waits 0\nafter: plain 0 of 30, free waits 0\n")
      << run.describe();
}

// Contract 8. A network card reads the memory that a library registers by verbs of its own.
TEST(Verbs, MakeMemoryPlainIfALibraryOfTheProgramNeedsThem) {
  const PreloadedRun run =
      run_preloaded("probe_agents library=verbs/libverbs_user.so", {kNoSharing});
  EXPECT_EQ(run.process.out, "before: plain 0, free waits 0\nafter: plain 30 of 30, free waits 1\n")
      << run.describe();
  ASSERT_EQ(run.reports.size(), 1u);
  EXPECT_EQ(run.reports[0].at("mode_reason").at("library"), "libibverbs.so.1") << run.describe();
  EXPECT_EQ(run.reports[0].at("free_mode"), "sync") << run.describe();
}

// NCCL opens them in each process where there are any, and its plugins need them.
TEST(Verbs, OfNcclChangeNothing) {
  for (const char* library : {"verbs/libibverbs.so.1", "verbs/libnccl-net.so"}) {
    const PreloadedRun run =
        run_preloaded(std::string("probe_agents library=") + library, {kNoSharing});
    EXPECT_EQ(run.process.out,
              "before: plain 0, free waits 0\nafter: plain 0 of 30, free waits 0\n")
        << run.describe();
    ASSERT_EQ(run.reports.size(), 1u);
    EXPECT_TRUE(run.reports[0].at("mode_reason").is_null()) << run.describe();
  }
}

// UCX patches the driver's code: it then sees what the driver allocates and frees, and its
// registrations end with the memory itself, not with a block of it.
TEST(MemoryHooks, OfUcxSeeWhatTheDriverDoes) {
  const Environment kept = {{"CUPOOL_BACKEND", "malloc"}, {"CUPOOL_FREE_MODE", "sync"}};
  const PreloadedRun caching = run_preloaded("probe_ucm", kept);
  EXPECT_EQ(caching.process.exit_code, 0) << caching.describe();
  EXPECT_TRUE(contains(caching.process.out, "known of all 24\n")) << caching.describe();
  EXPECT_FALSE(contains(caching.process.out, "known and gone 0\n")) << caching.describe();
  const PreloadedRun returning =
      run_preloaded("probe_ucm", with(kept, {{"CUPOOL_MAX_CACHED", "0"}}));
  EXPECT_TRUE(contains(returning.process.out, "known of all 24\nknown and gone 0\n"))
      << returning.describe();
}

// What lies idle goes back by the call that they see.
TEST(MemoryHooks, OfUcxSeeTheEndOfIdleMemory) {
  const ScratchFolder folder;
  const std::string calls = folder.path() + "/calls";
  const PreloadedRun run = run_preloaded("probe_ucm with=ucp", {{"CUPOOL_BACKEND", "malloc"},
                                                                {"CUPOOL_FREE_MODE", "sync"},
                                                                {"CUPOOL_MAX_CACHED", "4M"},
                                                                {"CUPOOL_SIM_CALLS", calls}});
  EXPECT_EQ(run.process.exit_code, 0) << run.describe();
  EXPECT_GT(run.counter("returned_blocks_total"), 0u) << run.describe();
  std::istringstream lines(read_file(calls));
  std::map<std::string, int> made;
  for (std::string name; lines >> name;) lines >> made[name];
  EXPECT_GT(made["cuMemFree_v2"], 0);
  EXPECT_EQ(made["cuMemFreeAsync"], 0);
}

// UCX is not taken for the caller of the program's calls.
TEST(MemoryHooks, OfUcxLeaveTheProgramItsPools) {
  const PreloadedRun run = expect_same("probe_ucm hooks=references", 0, 1, {});
  EXPECT_EQ(run.counter("free_calls_total"), 24u) << run.describe();
  const PreloadedRun patched = run_preloaded("probe_ucm", {{"CUPOOL_POOL_START", "first"}});
  EXPECT_EQ(patched.process.exit_code, 0) << patched.describe();
  EXPECT_EQ(patched.counter("served_passthrough_total"), 0u) << patched.describe();
}

// UCX tells memory by what the driver allocated. Who exports memory otherwise may have given it to
// anyone.
TEST(Registrations, OfUcxLetPlainMemoryBeReused) {
  for (const char* backend : {"malloc", "pool"}) {
    for (const char* by : {"ucx", "program"}) {
      SCOPED_TRACE(std::string(backend) + ", " + by);
      const PreloadedRun run = run_preloaded(
          std::string("probe_ucm registers=") + by,
          {{"CUPOOL_BACKEND", backend}, {"CUPOOL_FREE_MODE", "sync"}, {"CUPOOL_LANE", "0"}});
      EXPECT_EQ(run.process.exit_code, 0) << run.describe();
      const bool is_reused = std::string(backend) + by == "mallocucx";
      EXPECT_EQ(run.counter("served_fresh_total"), is_reused ? 6u : 24u) << run.describe();
      // Of a pool's memory the hooks know nothing.
      EXPECT_EQ(contains(run.process.out, "known and gone 0\n"), !is_reused) << run.describe();
    }
  }
}

}  // namespace
}  // namespace preload
