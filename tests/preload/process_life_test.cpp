// Processes, threads and the dynamic linker at inconvenient moments (contract 11, I6): no hang, no
// crash, the exit code kept, one report for each process that allocated GPU memory, none from any
// other. lifetime_test.cpp has the quiet cases.
#include <cctype>
#include <csignal>
#include <cstdlib>

#include "harness.h"

namespace preload {
namespace {

constexpr int kExitCode = 7;

std::string name_of(const std::string& text) {
  std::string name;
  for (const char c : text) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

// --- the end of a process ---

class LeavingBusy : public testing::TestWithParam<const char*> {};

TEST_P(LeavingBusy, KeepsTheExitCodeAndReportsOnce) {
  expect_same(std::string("probe_life_exit mode=") + GetParam(), kExitCode, 1);
}

INSTANTIATE_TEST_SUITE_P(All, LeavingBusy,
                         testing::Values("busy_exit", "busy_return", "busy__exit",
                                         "busy_quick_exit", "thread_exit", "main_ends", "statics"),
                         [](const auto& row) { return std::string(row.param); });

struct Death {
  const char* mode;
  int signal;
};
class Dying : public testing::TestWithParam<Death> {};

TEST_P(Dying, IsAsWithoutUsAndLeavesNoReport) {
  const std::string probe = std::string("probe_life_exit mode=") + GetParam().mode;
  const ProcessResult plain = run_plain(probe);
  const PreloadedRun preloaded = run_preloaded(probe);
  EXPECT_EQ(plain.signal, GetParam().signal) << plain.describe();
  EXPECT_EQ(preloaded.process.signal, GetParam().signal) << preloaded.describe();
  EXPECT_EQ(preloaded.process.out, plain.out);
  EXPECT_TRUE(preloaded.reports.empty());
}

INSTANTIATE_TEST_SUITE_P(All, Dying,
                         testing::Values(Death{"busy_abort", SIGABRT}, Death{"busy_term", SIGTERM},
                                         Death{"busy_segv", SIGSEGV}),
                         [](const auto& row) { return std::string(row.param.mode); });

// Twelve processes leave by _exit in a handler that interrupted an allocation. One that interrupted
// a holder of a lock (the heap's, the driver's) gives its report up after two seconds; all keep
// their exit code.
TEST(LeavingInAHandler, EndsAlways) {
  Environment extra;
  if (tested_build().has_thread_sanitizer()) {
    // A report that is written in a handler allocates, and takes locks in whatever order: that is
    // what the two seconds are for.
    const char* options = std::getenv("TSAN_OPTIONS");
    extra["TSAN_OPTIONS"] = std::string(options == nullptr ? "" : options) +
                            ":report_signal_unsafe=0:detect_deadlocks=0";
  }
  const PreloadedRun preloaded = run_preloaded("probe_life_exit mode=handler_exit", extra);
  EXPECT_EQ(preloaded.process.exit_code, kExitCode) << preloaded.describe();
  EXPECT_EQ(preloaded.process.out, run_plain("probe_life_exit mode=handler_exit").out);
  EXPECT_LE(preloaded.reports.size(), 12u);
  EXPECT_LT(preloaded.process.seconds, 20) << "two seconds for all at once, and some work";
}

// A report that cannot be written delays `_exit` by two seconds and no more.
TEST(LeavingStuck, EndsAllTheSame) {
  const std::string probe = "probe_life_exit mode=full_pipe";
  EXPECT_EQ(run_plain(probe).exit_code, kExitCode);
  const PreloadedRun preloaded = run_preloaded(probe, {{"CUPOOL_STATS_FILE", ""}});
  EXPECT_EQ(preloaded.process.exit_code, kExitCode) << preloaded.describe();
  EXPECT_GE(preloaded.process.seconds, 1.9) << "nothing stood in the way";
}

// --- children ---

struct Children {
  const char* mode;
  size_t reports;
};
class Multiplying : public testing::TestWithParam<Children> {};

TEST_P(Multiplying, IsRightAndReportsComeFromUsersOfTheGpuAlone) {
  const std::string probe = std::string("probe_life_fork mode=") + GetParam().mode;
  if (const char* reason = reason_to_skip(probe)) GTEST_SKIP() << reason;
  expect_same(probe, 0, GetParam().reports);
}

INSTANTIATE_TEST_SUITE_P(All, Multiplying,
                         testing::Values(Children{"busy", 1}, Children{"init_only", 0},
                                         Children{"start_race", 30}, Children{"nested", 1},
                                         Children{"daemon", 1}, Children{"workers", 4},
                                         Children{"self", 2}),
                         [](const auto& row) { return std::string(row.param.mode); });

// --- threads ---

TEST(Threads, TenThousandGrowNothing) {
  // A sanitizer's own memory grows.
  const std::string allowed = tested_build().has_memory_sanitizer() ? " allowed_kib=1000000" : "";
  const uint64_t threads = tested_build().has_thread_sanitizer() ? 2'000 : 10'000;
  const PreloadedRun result =
      expect_same("probe_life_threads threads=" + std::to_string(threads) + allowed);
  EXPECT_NE(result.process.out.find("streams grown no"), std::string::npos) << result.describe();
  EXPECT_NE(result.process.out.find("memory grown no"), std::string::npos) << result.describe();
  EXPECT_EQ(result.counter("malloc_calls_total"), 2 * threads);
}

// --- a report on a signal ---

const Environment kOnUsr1 = {{"CUPOOL_STATS_SIGNAL", "USR1"}};

// The snapshots among the reports, by their number; the report at exit is number 0.
std::map<int, nlohmann::json> by_number(const PreloadedRun& result) {
  std::map<int, nlohmann::json> reports;
  for (const nlohmann::json& report : result.reports) {
    EXPECT_TRUE(reports.emplace(report.at("snapshot_number").get<int>(), report).second);
  }
  return reports;
}

uint64_t mallocs_in(const nlohmann::json& report) {
  return report.at("devices").at(0).at("counters").at("malloc_calls_total").get<uint64_t>();
}

TEST(ReportOnSignal, IsASnapshotOfThatMoment) {
  const PreloadedRun result = run_preloaded("probe_life_signal mode=plain", kOnUsr1);
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_EQ(result.process.err, "");
  auto reports = by_number(result);
  ASSERT_EQ(reports.size(), 4u);
  for (const auto& [number, report] : reports) {
    expect_identity(report);
    EXPECT_EQ(mallocs_in(report), number == 0 ? 32u : 8u * static_cast<uint64_t>(number));
    EXPECT_FALSE(report.at("devices").at(0).at("pool").is_null()) << "the driver was not asked";
  }
}

TEST(ReportOnSignal, GoesToStandardErrorWithoutAFile) {
  Environment environment = base_environment();
  add_preload(&environment);
  environment["CUPOOL_STATS_SIGNAL"] = "SIGUSR1";
  Command command;
  command.argv = {probe_path("probe_life_signal"), "mode=leaving"};
  command.environment = environment;
  const ProcessResult result = run(command);
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_NE(result.err.find("of the running process"), std::string::npos) << result.describe();
  EXPECT_NE(result.err.find("leaked: live at exit"), std::string::npos) << result.describe();
}

class SignalIsHarmless : public testing::TestWithParam<const char*> {};

TEST_P(SignalIsHarmless, WhateverTheProgramDoes) {
  if (tested_build().has_thread_sanitizer() && std::string(GetParam()) == "restart") {
    GTEST_SKIP() << "the sanitizer holds the signal back until the read has returned";
  }
  const PreloadedRun result =
      run_preloaded(std::string("probe_life_signal mode=") + GetParam(), kOnUsr1);
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_EQ(result.process.err, "");
  const auto reports = by_number(result);
  EXPECT_EQ(reports.count(0), 1u) << "the report at exit";
  EXPECT_GE(reports.size(), 2u);
  uint64_t before = 0;
  for (const auto& [number, report] : reports) {
    if (number == 0) continue;
    EXPECT_GE(mallocs_in(report), before);
    before = mallocs_in(report);
    EXPECT_LE(before, mallocs_in(reports.at(0)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, SignalIsHarmless,
                         testing::Values("busy", "fork", "capture", "descriptors", "restart"),
                         [](const auto& row) { return std::string(row.param); });

TEST(ReportOnSignal, MayComeUntilTheVeryEnd) {
  for (int i = 0; i < often(12); ++i) {
    const PreloadedRun result = run_preloaded("probe_life_signal mode=leaving", kOnUsr1);
    EXPECT_EQ(result.process.exit_code, 0) << result.describe();
    EXPECT_EQ(by_number(result).count(0), 1u) << result.describe();
  }
}

TEST(ReportOnSignal, LeavesTheSignalToAHandlerThatComesLater) {
  const PreloadedRun result = run_preloaded("probe_life_signal mode=own_later", kOnUsr1);
  EXPECT_EQ(result.process.out, run_plain("probe_life_signal mode=own_later",
                                          {{"CUPOOL_STATS_FILE", "/nonexistent/%p.json"}})
                                    .out);
  EXPECT_EQ(result.process.err, "");
  EXPECT_EQ(result.reports.size(), 1u);
}

TEST(ReportOnSignal, LeavesASignalThatIsTakenAndWarnsOnce) {
  for (const char* mode : {"own_before", "ignored"}) {
    const std::string probe = std::string("probe_life_signal mode=") + mode;
    const PreloadedRun result = run_preloaded(probe, kOnUsr1);
    EXPECT_EQ(result.process.exit_code, 0) << result.describe();
    EXPECT_EQ(result.process.out,
              run_plain(probe, {{"CUPOOL_STATS_FILE", "/nonexistent/%p.json"}}).out);
    const size_t first = result.process.err.find("CUPOOL_STATS_SIGNAL");
    EXPECT_NE(first, std::string::npos) << result.describe();
    EXPECT_EQ(result.process.err.find("CUPOOL_STATS_SIGNAL", first + 1), std::string::npos);
    EXPECT_EQ(result.reports.size(), 1u);
  }
}

TEST(ReportOnSignal, CostsAThreadOnlyWhereItIsAskedFor) {
  const std::string probe = "probe_life_signal mode=tasks";
  const std::string plain = run_plain(probe).out;
  EXPECT_EQ(run_preloaded(probe).process.out, plain);
  EXPECT_NE(run_preloaded(probe, kOnUsr1).process.out, plain);
  Environment silent = kOnUsr1;
  silent["CUPOOL_STATS"] = "off";
  EXPECT_EQ(run_preloaded(probe, silent).process.out, plain) << "nothing to write";
}

// --- the dynamic linker ---

class Unloading : public testing::TestWithParam<const char*> {};

TEST_P(Unloading, OfTheLibraryThatAllocatedLosesNothing) {
  const PreloadedRun result = expect_same(std::string("probe_life_load mode=unload ") + GetParam());
  EXPECT_EQ(result.counter("malloc_calls_total"), 6u);
  EXPECT_EQ(result.counter("free_calls_total"), 6u);
}

INSTANTIATE_TEST_SUITE_P(All, Unloading,
                         testing::Values("first=static", "first=shared", "first=driver",
                                         "first=static second=shared", "first=shared second=driver",
                                         "first=driver second=static"),
                         [](const auto& row) { return name_of(row.param); });

// A plugin opened with RTLD_DEEPBIND binds to libc and the driver directly and passes us by. What
// is allocated on one side may be freed on the other; we may find out, and say so once.
class Crossing : public testing::TestWithParam<std::string> {};

TEST_P(Crossing, ServesBothSidesRight) {
  const std::string probe = "probe_life_load mode=cross " + GetParam();
  if (const char* reason = reason_to_skip(probe)) GTEST_SKIP() << reason;
  const PreloadedRun result = run_preloaded(probe);
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_EQ(result.process.out, run_plain(probe).out);
  const bool deep = probe.back() == '1';
  const std::string warning = "memory of cupool was freed by a route that it does not see\n";
  if (!deep || result.process.err.find(warning) == std::string::npos) {
    EXPECT_EQ(result.process.err, "");
  }
  EXPECT_EQ(result.reports.size(), 1u);
}

std::vector<std::string> pairs_of_plugins() {
  std::vector<std::string> pairs;
  for (const char* deep : {"0", "1"}) {
    for (const char* first : {"static", "shared", "driver"}) {
      for (const char* second : {"static", "shared", "driver"}) {
        if (std::string(first) == second) continue;  // one library, one way
        pairs.push_back(std::string("first=") + first + " second=" + second + " deep=" + deep);
      }
    }
  }
  return pairs;
}

INSTANTIATE_TEST_SUITE_P(All, Crossing, testing::ValuesIn(pairs_of_plugins()),
                         [](const auto& row) { return name_of(row.param); });

// A failed look-up of a hooked name reads as without us.
TEST(DlError, DoesNotNameUs) {
  expect_same("probe_life_load mode=errors first=driver", 0, 0);
  expect_same("probe_life_load mode=errors first=static", 0, 0);
}

}  // namespace
}  // namespace preload
