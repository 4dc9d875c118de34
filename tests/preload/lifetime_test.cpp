// How processes end and multiply (contract 11, I6): no hang, no crash, the exit code kept, one
// report for each process that allocated GPU memory, none from any other.
#include <unistd.h>

#include <csignal>

#include "harness.h"

namespace preload {
namespace {

constexpr int kProbeExitCode = 7;  // of probe_exit

class Ending : public testing::TestWithParam<const char*> {};

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

struct Multiplied {
  const char* mode;
  size_t reports;
};

class Fork : public testing::TestWithParam<Multiplied> {};

TEST_P(Fork, IsRightAndReportsComeFromUsersOfTheGpuAlone) {
  const std::string probe = std::string("probe_fork mode=") + GetParam().mode;
  if (const char* reason = reason_to_skip(probe)) GTEST_SKIP() << reason;
  expect_same(probe, 0, GetParam().reports);
}

INSTANTIATE_TEST_SUITE_P(All, Fork,
                         testing::Values(Multiplied{"after", 1}, Multiplied{"after_idle", 1},
                                         Multiplied{"busy", 1}, Multiplied{"before", 1},
                                         Multiplied{"both", 2}, Multiplied{"vfork", 1},
                                         Multiplied{"spawn", 1}, Multiplied{"system", 1}),
                         [](const auto& row) { return std::string(row.param.mode); });

// Style 9: the report goes to standard error by default, as text, after the program's own output.
TEST(Report, IsTextOnStandardErrorByDefault) {
  Environment environment = base_environment();
  add_preload(&environment);
  Command command;
  command.argv = {probe_path("probe_runtime_shared")};
  command.environment = environment;
  const ProcessResult result = run(command);
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_NE(result.err.find("cupool"), std::string::npos) << result.describe();
  EXPECT_EQ(result.out, run_plain("probe_runtime_shared").out);
}

TEST(Report, ComesNotFromAProgramWithoutAllocations) {
  const PreloadedRun result = run_preloaded("probe_queries");
  EXPECT_TRUE(result.reports.empty());
  EXPECT_EQ(result.process.err, "");
}

TEST(Report, OffMeansNone) {
  const PreloadedRun result = run_preloaded("probe_runtime_shared", {{"CUPOOL_STATS", "off"}});
  EXPECT_TRUE(result.reports.empty());
  EXPECT_EQ(result.process.err, "");
  EXPECT_EQ(result.process.exit_code, 0);
}

// Issue 2: text and JSON come from the same snapshot; the JSON file gets .json appended.
TEST(Report, TextAndJsonTogether) {
  const ScratchFolder folder;
  Environment environment = base_environment();
  add_preload(&environment);
  environment["CUPOOL_STATS"] = "text,json";
  environment["CUPOOL_STATS_FILE"] = folder.path() + "/report";
  Command command;
  command.argv = {probe_path("probe_runtime_shared")};
  command.environment = environment;
  const ProcessResult result = run(command);
  EXPECT_EQ(result.err, "") << result.describe();
  const std::string text = read_file(folder.path() + "/report");
  EXPECT_NE(text.find("cupool"), std::string::npos) << text;
  const nlohmann::json report =
      nlohmann::json::parse(read_file(folder.path() + "/report.json"), nullptr, false);
  ASSERT_FALSE(report.is_discarded());
  expect_identity(report);
  const auto mallocs = report.at("devices").at(0).at("counters").at("malloc_calls_total");
  EXPECT_EQ(mallocs, counts_of(result.out).mallocs);
}

// Every format comes from one snapshot, and none takes another's file.
TEST(Report, AllFormatsTogether) {
  const ScratchFolder folder;
  Environment environment = base_environment();
  add_preload(&environment);
  environment["CUPOOL_STATS"] = "text,json,csv,prometheus";
  environment["CUPOOL_STATS_FILE"] = folder.path() + "/report.log";
  Command command;
  command.argv = {probe_path("probe_runtime_shared")};
  command.environment = environment;
  const ProcessResult result = run(command);
  EXPECT_EQ(result.err, "") << result.describe();
  EXPECT_EQ(folder.files().size(), 4u) << "and no half-written file";
  const std::string mallocs = std::to_string(counts_of(result.out).mallocs);
  const std::string csv = read_file(folder.path() + "/report.log.csv");
  EXPECT_NE(csv.find(",0,counter,malloc_calls_total," + mallocs + "\r\n"), std::string::npos)
      << csv;
  const std::string prometheus = read_file(folder.path() + "/report.log.prom");
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof(host) - 1), 0);
  EXPECT_NE(
      prometheus.find("cupool_malloc_calls_total{device=\"0\",host=\"" + std::string(host) +
                      "\",pid=\"" + std::to_string(result.pid) + "\",rank=\"\"} " + mallocs + "\n"),
      std::string::npos)
      << prometheus;
  EXPECT_FALSE(read_file(folder.path() + "/report.log").empty());
  EXPECT_FALSE(read_file(folder.path() + "/report.log.json").empty());
}

}  // namespace
}  // namespace preload
