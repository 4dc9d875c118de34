// SPDX-License-Identifier: Apache-2.0
// Contract 8, programs of MPI: a free does not wait for the GPU once the program's calls of MPI are
// seen, and these come after all work before the free (docs/design.md, Messages).
#include "harness.h"

namespace preload {
namespace {

const Environment kLateMessages = {{"CUPOOL_POOL_START", "first"}, {"CUPOOL_SIM_MODE", "late"}};

struct Way {
  const char* name;
  bool seen;         // whether frees stop waiting
  const char* mode;  // in force at the end
};

class Messages : public testing::TestWithParam<Way> {};

// Contract 8.
TEST_P(Messages, ComeAfterTheWorkBeforeAFree) {
  const Way& way = GetParam();
  for (const char* mode : {"late", "early"}) {
    SCOPED_TRACE(mode);
    const PreloadedRun run = expect_same(std::string("probe_mpi ") + way.name, 0, 1,
                                         with(kLateMessages, {{"CUPOOL_SIM_MODE", mode}}));
    expect_counts(run);
    ASSERT_EQ(run.reports.size(), 1u);
    const nlohmann::json& report = run.reports[0];
    EXPECT_EQ(report.at("free_mode"), way.mode) << run.describe();
    EXPECT_EQ(report.at("backend"), "malloc") << run.describe();
    const bool hangs = std::string(way.name) == "hang";
    EXPECT_TRUE(contains(run.process.out, hangs ? "sent 5\n" : "wrong 0\n")) << run.describe();
    if (std::string(mode) == "late" && std::string(way.mode) == "auto") {
      EXPECT_GT(run.counter("message_waits_total"), 0u) << run.describe();
    }
    if (!way.seen) {
      EXPECT_EQ(run.counter("message_waits_total"), 0u) << run.describe();
    }
    expect_identity(report);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, Messages,
    testing::Values(Way{"send", true, "auto"}, Way{"profiled", true, "auto"},
                    Way{"thread", true, "auto"}, Way{"no_context", true, "auto"},
                    Way{"several", true, "auto"}, Way{"copies", true, "auto"},
                    Way{"found", true, "auto"}, Way{"found_in_library", true, "auto"},
                    Way{"made_at_run_time", true, "auto"}, Way{"awaited", true, "auto"},
                    Way{"mpi_looks_up", true, "auto"}, Way{"hang", true, "auto"},
                    Way{"unseen", false, "sync"}, Way{"callback", true, "auto"},
                    Way{"found_elsewhere", true, "sync"}, Way{"found_next", true, "sync"},
                    Way{"user_of_ucx", true, "sync"}, Way{"ucxx", true, "sync"}),
    [](const auto& row) { return std::string(row.param.name); });

// A tool that defines MPI's functions and calls the next ones is no route past cupool.
TEST(MessagesOfATool, ComeAfterTheWorkBeforeAFree) {
  const PreloadedRun run = expect_same("probe_mpi_tool send", 0, 1, kLateMessages);
  EXPECT_TRUE(contains(run.process.out, "wrong 0\n")) << run.describe();
  EXPECT_EQ(run.reports.at(0).at("free_mode"), "auto") << run.describe();
  EXPECT_GT(run.counter("message_waits_total"), 0u) << run.describe();
}

// Contract 13: no look-up finds what the program alone would not.
TEST(MessagesByName, AreFoundWhereTheyAre) {
  const PreloadedRun run = expect_same("probe_mpi names", 0, 1, kLateMessages);
  EXPECT_TRUE(contains(run.process.out, "MPI_Test in all: 0")) << run.describe();
  EXPECT_TRUE(contains(run.process.out, "own 42\n")) << run.describe();
}

// Nobody can read the memory by a route that leads nowhere.
TEST(MessagesOfNoMpi, ChangeNothingWhenTheyAreAskedFor) {
  const PreloadedRun run = expect_same("probe_mpi_late asks");
  expect_counts(run);
  EXPECT_TRUE(contains(run.process.out, "found 0\nfound 0\n")) << run.describe();
  EXPECT_EQ(run.reports.at(0).at("free_mode"), "auto") << run.describe();
  EXPECT_EQ(run.reports.at(0).at("backend"), "pool") << run.describe();
}

// What a weak reference finds without MPI says why it fails, once.
TEST(MessagesOfNoMpi, FailWithAWord) {
  EXPECT_EQ(run_plain("probe_mpi_late weak").out, "no MPI\n");
  const ProcessResult run = run_with_library("probe_mpi_late weak");
  EXPECT_EQ(run.out, "error 16\nerror 16\n") << run.describe();
  EXPECT_EQ(lines_of(run.err).size(), 1u) << run.describe();
  EXPECT_TRUE(contains(run.err, "a weak reference finds them")) << run.describe();
}

// MPI comes after the frees, in a scope of its own, goes, and comes again.
TEST(MessagesOfALateMpi, ComeAfterTheWorkBeforeAFree) {
  for (const char* way : {"opened", "later", "made_at_run_time"}) {
    for (const char* lane : {"1", "0"}) {
      const PreloadedRun run = expect_same(std::string("probe_mpi_late ") + way, 0, 1,
                                           with(kLateMessages, {{"CUPOOL_LANE", lane}}));
      EXPECT_TRUE(contains(run.process.out, "wrong 0\n")) << run.describe();
      expect_counts(run);
      EXPECT_EQ(run.reports.at(0).at("free_mode"), "auto") << run.describe();
    }
  }
}

// Contract 13: functions that happen to have such a name stay the program's.
TEST(MessagesOfNoMpi, AreThePrograms) {
  const PreloadedRun run = expect_same("probe_mpi_late stand_in", 0, 0);
  EXPECT_EQ(run.process.out, "answer 42\nanswer 42\n") << run.describe();
}

// So that the tests above can fail.
TEST(MessagesInOtherModes, AreTheProgramsOwn) {
  const PreloadedRun ordered =
      run_preloaded("probe_mpi send", with(kLateMessages, {{"CUPOOL_FREE_MODE", "ordered"}}));
  EXPECT_TRUE(contains(ordered.process.out, "wrong 6\n")) << ordered.describe();
  const PreloadedRun sync =
      expect_same("probe_mpi send", 0, 1, with(kLateMessages, {{"CUPOOL_FREE_MODE", "sync"}}));
  EXPECT_EQ(sync.counter("message_waits_total"), 0u) << sync.describe();
}

// Without events of contexts a message could only wait for everything, also for what is submitted
// after the free.
TEST(MessagesWithOlderDrivers, LeaveTheWaitsToFrees) {
  for (const char* way : {"send", "hang"}) {
    const PreloadedRun run = expect_same(std::string("probe_mpi ") + way, 0, 1,
                                         old_driver("lib-no-ctx-event", kLateMessages));
    EXPECT_EQ(run.counter("message_waits_total"), 0u) << run.describe();
    EXPECT_EQ(run.reports.at(0).at("free_mode"), "sync") << run.describe();
  }
}

// The wrong engine that these tests have to find.
TEST(MessagesMutation, IsFound) {
  if (!tested_build().sanitizer.empty()) GTEST_SKIP() << "no such engine with a sanitizer";
  for (const char* way : {"send", "thread", "several", "no_context"}) {
    Environment environment = with(
        kLateMessages, {{"CUPOOL_STATS", "off"}, {"CUPOOL_TEST_MUTATION", "forgets-messages"}});
    environment["LD_PRELOAD"] = tested_build().folder + "/tests/libcupool_mutable.so";
    const ProcessResult run = run_plain(std::string("probe_mpi ") + way, environment);
    EXPECT_TRUE(contains(run.out, "wrong ")) << run.describe();
    EXPECT_FALSE(contains(run.out, "wrong 0")) << run.describe();
  }
}

}  // namespace
}  // namespace preload
