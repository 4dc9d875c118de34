// SPDX-License-Identifier: Apache-2.0
// Contract 11: threads that come and go, and libraries that the program loads and unloads, by every
// runtime and by routes that pass us by.
#include "harness.h"

namespace preload {
namespace {

TEST(Threads, TenThousandGrowNothing) {
  // A sanitizer's own memory grows.
  const std::string allowed = tested_build().has_memory_sanitizer() ? " allowed_kib=1000000" : "";
  const uint64_t threads = tested_build().has_thread_sanitizer() ? 2'000 : 10'000;
  // Early: in a lane nobody waits, and simulated work that is pending takes memory.
  const PreloadedRun result =
      expect_same("probe_life_threads threads=" + std::to_string(threads) + allowed, 0, 1,
                  {{"CUPOOL_SIM_MODE", "early"}});
  EXPECT_NE(result.process.out.find("streams grown no"), std::string::npos) << result.describe();
  EXPECT_NE(result.process.out.find("memory grown no"), std::string::npos) << result.describe();
  EXPECT_EQ(result.counter("malloc_calls_total"), 2 * threads);
}

// No file, message or wait of ours is a cancellation point, nor is the driver below us: threads
// that are cancelled end between their calls and lose nothing. Alone, the simulated driver is one.
TEST(Threads, CancelledOnesEndBetweenTheirCalls) {
  const ScratchFolder folder;
  const Environment small = {{"CUPOOL_SIM_MEMORY", "256M"}, {"CUPOOL_POOL_START", "first"}};
  for (const Environment& extra :
       {Environment{}, Environment{{"CUPOOL_TRACE", folder.path() + "/trace.csv"}},
        Environment{{"CUPOOL_LOG_LEVEL", "trace"}, {"CUPOOL_LOG_FILE", folder.path() + "/log"}}}) {
    const PreloadedRun run = run_preloaded("probe_life_threads mode=cancelled", with(small, extra));
    EXPECT_EQ(run.process.exit_code, 0) << run.describe();
    EXPECT_EQ(run.process.out, "cancelled\n") << run.describe();
  }
  const PreloadedRun waiting = run_preloaded("probe_life_threads mode=cancelled waits=1",
                                             with(small, {{"CUPOOL_SIM_MODE", "timed"}}));
  EXPECT_EQ(waiting.process.exit_code, 0) << waiting.describe();
  EXPECT_EQ(waiting.process.out, "cancelled\n") << waiting.describe();
}

// The end of a thread is seen by a thread-specific key, of which a process has 1,024.
constexpr char kNoKey[] = "no thread-specific key is left (PTHREAD_KEYS_MAX)";

TEST(ThreadSpecificKeys, AllTakenLeaveTheProgramToTheDriver) {
  const ScratchFolder folder;
  for (const Environment& extra :
       {Environment{}, Environment{{"CUPOOL_TRACE", folder.path() + "/trace.csv"}}}) {
    const PreloadedRun run = run_preloaded("probe_keys", extra);
    EXPECT_EQ(run.process.exit_code, 0) << run.describe();
    EXPECT_EQ(run.process.signal, 0) << run.describe();
    EXPECT_EQ(run.process.out, run_plain("probe_keys").out);
    if (tested_build().sanitizer.empty()) {  // whose runtime has it
      EXPECT_TRUE(contains(run.process.out, "has the first key: 1")) << run.describe();
    }
    EXPECT_TRUE(contains(run.process.err, kNoKey)) << run.describe();
    EXPECT_EQ(lines_of(run.process.err).size(), 1u) << run.describe();
    EXPECT_EQ(run.reports.size(), 0u);
  }
}

TEST(ThreadSpecificKeys, TheLastOneIsNotTheTraces) {
  const ScratchFolder folder;
  const PreloadedRun run =
      run_preloaded("probe_keys leave=1", {{"CUPOOL_TRACE", folder.path() + "/trace.csv"}});
  EXPECT_EQ(run.process.exit_code, 0) << run.describe();
  EXPECT_EQ(run.process.out, run_plain("probe_keys leave=1").out);
  EXPECT_TRUE(contains(run.process.err, kNoKey)) << run.describe();
  EXPECT_EQ(lines_of(run.process.err).size(), 2u) << "and what the trace lacks: " << run.describe();
  ASSERT_EQ(run.reports.size(), 1u) << run.describe();
  expect_counts(run);
  EXPECT_EQ(run.reports[0].at("trace").at("dropped_events_total"),
            run.counter("malloc_calls_total") + run.counter("free_calls_total"));
}

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

// Threads, handlers of exit and fork, and blocks outlive the handle that a program had of us.
class Closing : public testing::TestWithParam<const char*> {};

TEST_P(Closing, OfOurselvesEndsNothing) {
  const std::string probe = std::string("probe_life_close library=") + library_path() + " mode=";
  const PreloadedRun result = run_preloaded(probe + GetParam(), {{"LD_PRELOAD", ""},
                                                                 {"CUPOOL_POOL_START", "first"},
                                                                 {"CUPOOL_DECAY_MS", "4"},
                                                                 {"CUPOOL_STATS_INTERVAL", "1"},
                                                                 {"CUPOOL_STATS_SIGNAL", "USR1"}});
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_EQ(result.process.err, "");
  ASSERT_EQ(result.reports.size(), 1u) << result.describe();
  expect_counts(result);
}

INSTANTIATE_TEST_SUITE_P(All, Closing, testing::Values("exit", "quick_exit", "fork", "again"),
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
  const std::string warning = "the program freed a block by a route that cupool does not see";
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

// The dynamic linker holds its lock around constructors.
TEST(Plugins, MayAllocateInAConstructorBesideTheFirstAllocation) {
  expect_same("probe_start_beside_load");
  expect_same("probe_start_beside_load", 0, 1, {{"CUPOOL_SITES", "1"}});
}

// A failed look-up of a hooked name reads as without us.
TEST(DlError, DoesNotNameUs) {
  expect_same("probe_life_load mode=errors first=driver", 0, 0);
  expect_same("probe_life_load mode=errors first=static", 0, 0);
}

}  // namespace
}  // namespace preload
