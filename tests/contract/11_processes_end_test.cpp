// SPDX-License-Identifier: Apache-2.0
// Contract 11: how processes end, at inconvenient moments too. No hang, no crash, the exit
// code kept, one report for each process that allocated GPU memory, none from any other.
#include <sys/auxv.h>

#include <csignal>
#include <cstdlib>

#include "harness.h"

namespace preload {
namespace {

constexpr int kExitCode = 7;

// --- before our own start ---

// The constructors of a program's libraries run before ours.
class BeforeUs : public testing::TestWithParam<const char*> {};

TEST_P(BeforeUs, EverythingIsAsWithoutUs) {
  const std::string probe = std::string("probe_early call=") + GetParam();
  const ProcessResult plain = run_plain(probe);
  const PreloadedRun preloaded = run_preloaded(probe);
  EXPECT_NE(plain.exit_code, 0);
  EXPECT_EQ(preloaded.process.exit_code, plain.exit_code) << preloaded.describe();
  EXPECT_EQ(preloaded.process.out, plain.out);
  EXPECT_EQ(preloaded.process.err, plain.err);
  EXPECT_TRUE(preloaded.reports.empty());
}

INSTANTIATE_TEST_SUITE_P(All, BeforeUs, testing::Values("exit", "quick_exit", "_exit", "redirect"),
                         [](const auto& row) { return std::string(row.param); });

// --- the end of a process ---

constexpr int kProbeExitCode = 7;  // of probe_exit

class Ending : public testing::TestWithParam<const char*> {};

// I6.
TEST_P(Ending, KeepsTheExitCodeAndReportsOnce) {
  expect_same(std::string("probe_exit mode=") + GetParam(), kProbeExitCode, 1);
}

INSTANTIATE_TEST_SUITE_P(All, Ending,
                         testing::Values("return", "exit", "_exit", "_Exit", "quick_exit",
                                         "destructor", "atexit", "thread"),
                         [](const auto& row) { return std::string(row.param); });

// A process that aborts may leave no report; it must die as it would have.
TEST(Ending, AbortStaysAnAbort) {
  const ProcessResult plain = run_plain("probe_exit mode=abort");
  const PreloadedRun preloaded = run_preloaded("probe_exit mode=abort");
  EXPECT_EQ(plain.signal, SIGABRT) << plain.describe();
  EXPECT_EQ(preloaded.process.signal, SIGABRT) << preloaded.describe();
  EXPECT_EQ(preloaded.process.out, plain.out);
}

// A sample of the time series waits for no end of a context, which may take as long as a kernel.
TEST(Ending, WaitsForNoContextThatAnotherThreadEnds) {
  constexpr double kLongestSeconds = 9;  // the kernel takes 40; a visit is waited for ten
  for (const char* mode : {"exit", "quick_exit"}) {
    const PreloadedRun run =
        expect_same(std::string("probe_exit_beside_end mode=") + mode, kProbeExitCode, 1,
                    {{"CUPOOL_SIM_MODE", "timed"}, {"CUPOOL_STATS_INTERVAL", "100ms"}});
    EXPECT_LT(run.process.seconds, kLongestSeconds) << mode << run.describe();
  }
}

// A sample that does not come back from the driver costs the report, not the end of the process.
TEST(Ending, WaitsForNoSampleThatHangs) {
  constexpr double kLongestSeconds = 30;  // a visit of the driver is waited for ten
  const PreloadedRun run = run_preloaded("probe_exit_beside_end ends=no looks=150",
                                         {{"CUPOOL_SIM_FAIL", "cuMemPoolGetAttribute:150=hang"},
                                          {"CUPOOL_DECAY_MS", "0"},
                                          {"CUPOOL_STATS_INTERVAL", "20ms"}});
  EXPECT_EQ(run.process.exit_code, kProbeExitCode) << run.describe();
  EXPECT_EQ(run.process.out, "leaving\n") << run.describe();
  EXPECT_TRUE(contains(run.process.err, "no report: ")) << run.describe();
  EXPECT_LT(run.process.seconds, kLongestSeconds) << run.describe();
}

class LeavingBusy : public testing::TestWithParam<const char*> {};

// I6.
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

// `options` of the caller behind a sanitizer's variable, and then ours.
Environment with_options(const char* variable, const std::string& ours) {
  const char* options = std::getenv(variable);
  return {{variable, std::string(options == nullptr ? "" : options) + ":" + ours}};
}

// A report that is written in a handler allocates, and takes locks in whatever order: that is what
// the bound on its time is for. One that is given up halfway leaves behind what it had allocated.
Environment allowed_in_handlers() {
  if (tested_build().has_thread_sanitizer()) {
    return with_options("TSAN_OPTIONS", "report_signal_unsafe=0:detect_deadlocks=0");
  }
  if (tested_build().has_memory_sanitizer()) return with_options("ASAN_OPTIONS", "detect_leaks=0");
  return {};
}

// Twelve processes leave in a handler that interrupted an allocation, or the C library. One that
// interrupted a holder of a lock (ours, the heap's, the driver's) gives its report up, and says so;
// all keep their exit code.
class LeavingInAHandler : public testing::TestWithParam<const char*> {};

TEST_P(LeavingInAHandler, EndsAlways) {
  const std::string how = GetParam();
  if (tested_build().has_thread_sanitizer() && how != "call=_exit") {
    GTEST_SKIP() << "the sanitizer calls handlers itself, where no call stack shows it";
  }
  if (tested_build().has_memory_sanitizer() && how != "call=_exit") {
    GTEST_SKIP() << "the sanitizer's own exit waits for its heap, without cupool too";
  }
  const std::string probe = "probe_life_exit mode=handler_exit " + how;
  const PreloadedRun preloaded = run_preloaded(probe, allowed_in_handlers());
  EXPECT_EQ(preloaded.process.exit_code, kExitCode) << preloaded.describe();
  EXPECT_EQ(preloaded.process.out, "children that ended wrongly: 0\n") << preloaded.describe();
  EXPECT_EQ(run_plain(probe).out, preloaded.process.out);
  EXPECT_LE(preloaded.reports.size(), 12u);
  if (!tested_build().has_memory_sanitizer()) {
    EXPECT_EQ(preloaded.reports.size() + lines_of(preloaded.process.err).size(), 12u)
        << "each has a report, or a line that says why not\n"
        << preloaded.describe();
  }
}

INSTANTIATE_TEST_SUITE_P(All, LeavingInAHandler,
                         testing::Values("call=_exit", "call=exit", "call=quick_exit",
                                         "call=exit in=heap", "call=exit in=aligned",
                                         "call=exit in=trim", "call=exit in=time"),
                         [](const auto& row) { return name_of(row.param); });

// Its own exit handlers, which come before ours, must not wait for it either.
TEST(LeavingWithALock, LetsTheProgramFreeInItsExitHandlers) {
  if (!tested_build().sanitizer.empty()) GTEST_SKIP() << "its locks are the sanitizer's";
  for (int lock = 1; lock <= 24; ++lock) {
    SCOPED_TRACE(lock);
    const PreloadedRun result =
        run_preloaded("probe_life_exit mode=handler_lock lock=" + std::to_string(lock));
    EXPECT_EQ(result.process.exit_code, kExitCode) << result.describe();
    EXPECT_EQ(result.process.out, "freed and allocated\n") << result.describe();
    EXPECT_LT(result.process.seconds, 10);
    EXPECT_EQ(result.reports.size() + lines_of(result.process.err).size(), 1u) << result.describe();
  }
}

// Nor must what they submit, and what they pin, wait for the locks of lanes.
TEST(LeavingWithALock, LetsTheProgramWorkInItsExitHandlers) {
  if (!tested_build().sanitizer.empty()) GTEST_SKIP() << "its locks are the sanitizer's";
  for (int lock = 1; lock <= 40; ++lock) {
    SCOPED_TRACE(lock);
    const PreloadedRun result =
        run_preloaded("probe_life_exit mode=handler_lock work=1 lock=" + std::to_string(lock));
    EXPECT_EQ(result.process.exit_code, kExitCode) << result.describe();
    EXPECT_EQ(result.process.out, "worked\n") << result.describe();
    EXPECT_LT(result.process.seconds, 5);
  }
}

// Where what was interrupted holds no lock, the report is there: the common end of a daemon.
class LeavingAtRest : public testing::TestWithParam<const char*> {};

TEST_P(LeavingAtRest, ReportsAsEver) {
  const PreloadedRun result = expect_same(std::string("probe_life_exit mode=") + GetParam(),
                                          kExitCode, 1, allowed_in_handlers());
  EXPECT_LT(result.process.seconds, 4);
  EXPECT_EQ(result.counter("malloc_calls_total"), 1u);
}

INSTANTIATE_TEST_SUITE_P(All, LeavingAtRest, testing::Values("handler_pause", "handler_wait"),
                         [](const auto& row) { return std::string(row.param); });

// The walk up the stack must take the interrupted function as it stands there.
TEST(LeavingAtRest, BehindTheMoveOfTheStackPointer) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "the function is written for x86-64";
#endif
  const PreloadedRun result =
      expect_same("probe_life_exit mode=handler_prologue", kExitCode, 1, allowed_in_handlers());
  EXPECT_EQ(result.counter("malloc_calls_total"), 1u);
}

// A report that cannot be written delays `_exit` by two seconds and no more.
TEST(LeavingStuck, EndsAllTheSame) {
  const std::string probe = "probe_life_exit mode=full_pipe";
  EXPECT_EQ(run_plain(probe).exit_code, kExitCode);
  const PreloadedRun preloaded = run_preloaded(probe, {{"CUPOOL_STATS_FILE", ""}});
  EXPECT_EQ(preloaded.process.exit_code, kExitCode) << preloaded.describe();
  EXPECT_GE(preloaded.process.seconds, 1.9) << "nothing stood in the way";
}

TEST(LeavingStuck, IsNotWhatAnAlarmOfTheProgramSays) {
  const PreloadedRun run = expect_same("probe_life_exit mode=alarm_pending", kExitCode, 1);
  EXPECT_EQ(run.reports.size(), 1u) << run.describe();
}

// Where there is no room for a report, there is none.
TEST(LeavingOnASignalStack, OfTheOldSizeKeepsTheExitCode) {
  if (!tested_build().sanitizer.empty()) GTEST_SKIP() << "whose own functions need more";
  if (getauxval(AT_MINSIGSTKSZ) > 4096) GTEST_SKIP() << "no signal fits on such a stack here";
  const PreloadedRun small =
      run_preloaded("probe_life_exit mode=signal_stack bytes=8192", {{"CUPOOL_STATS_FILE", ""}});
  EXPECT_EQ(small.process.exit_code, kExitCode) << small.describe();
  EXPECT_TRUE(contains(small.process.err, "no report, nor the end of a trace: "))
      << small.describe();
  for (const char* stats : {"text", "json"}) {
    const PreloadedRun enough = run_preloaded("probe_life_exit mode=signal_stack bytes=32768",
                                              {{"CUPOOL_STATS_FILE", ""}, {"CUPOOL_STATS", stats}});
    EXPECT_EQ(enough.process.exit_code, kExitCode) << enough.describe();
    EXPECT_TRUE(contains(enough.process.err, "malloc")) << enough.describe();
  }
}

}  // namespace
}  // namespace preload
