// SPDX-License-Identifier: Apache-2.0
// Settings as a user meets them (docs/options.md): one warning with the cure, the
// default kept, never an abort, never a lost allocation.
#include <unistd.h>

#include <regex>

#include "harness.h"

namespace preload {
namespace {

size_t occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

size_t lines(const std::string& text) {
  return occurrences(text, "\n");
}

struct BadSetting {
  const char* name;
  const char* value;
  const char* expected;  // must stand in the warning
};

class Bad : public testing::TestWithParam<BadSetting> {};

TEST_P(Bad, WarnsOnceAndChangesNothing) {
  const BadSetting& bad = GetParam();
  const ProcessResult plain = run_plain("probe_runtime_shared");
  const PreloadedRun result = run_preloaded("probe_runtime_shared", {{bad.name, bad.value}});
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_EQ(result.process.out, plain.out);
  EXPECT_NE(result.process.err.find(bad.expected), std::string::npos) << result.describe();
  EXPECT_NE(result.process.err.find(bad.name), std::string::npos) << result.describe();
  EXPECT_EQ(lines(result.process.err), 1u) << result.describe();
  expect_counts(result);
}

INSTANTIATE_TEST_SUITE_P(
    All, Bad,
    testing::Values(BadSetting{"CUPOOL_FREE_MOED", "sync", "CUPOOL_FREE_MODE"},
                    BadSetting{"CUPOOL_RELEASE_TRESHOLD", "1G", "CUPOOL_RELEASE_THRESHOLD"},
                    BadSetting{"CUPOOL_BACKEND", "pools", "malloc"},
                    BadSetting{"CUPOOL_FREE_MODE", "never", "sync"},
                    BadSetting{"CUPOOL_MAX_BLOCK", "banana", "banana"},
                    BadSetting{"CUPOOL_PREALLOC", "-3", "-3"},
                    BadSetting{"CUPOOL_MAX_CACHED", "101%", "101%"},
                    BadSetting{"CUPOOL_ENABLE", "perhaps", "perhaps"},
                    BadSetting{"CUPOOL_PROFILE", "/nonexistent/profile", "/nonexistent/profile"}),
    [](const auto& row) { return std::to_string(row.index) + std::string(row.param.name); });

TEST(Options, UnwritableReportFileWarnsAndReportsOnStandardError) {
  const PreloadedRun result = run_preloaded(
      "probe_runtime_shared",
      {{"CUPOOL_STATS", "text"}, {"CUPOOL_STATS_FILE", "/nonexistent/folder/report"}});
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_EQ(occurrences(result.process.err, "warning"), 1u) << result.describe();
  EXPECT_NE(result.process.err.find("/nonexistent/folder/report"), std::string::npos);
  EXPECT_GT(lines(result.process.err), 5u) << "no report:\n" << result.describe();
}

// docs/options.md: %p pid, %h host, %r rank, %t time.
TEST(Options, ReportFileNameIsExpanded) {
  const ScratchFolder folder;
  const ProcessResult result = run_with_library(
      "probe_runtime_shared", {{"CUPOOL_STATS", "json"},
                               {"CUPOOL_STATS_FILE", folder.path() + "/p%p-h%h-r%r-t%t-%%.json"},
                               {"OMPI_COMM_WORLD_RANK", "3"}});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof(host) - 1), 0);
  const std::vector<std::string> files = folder.files();
  ASSERT_EQ(files.size(), 1u) << result.describe();
  const std::string name = files[0].substr(folder.path().size() + 1);
  const std::string start = "p" + std::to_string(result.pid) + "-h" + host + "-r3-t";
  EXPECT_EQ(name.substr(0, start.size()), start);
  EXPECT_TRUE(std::regex_match(name, std::regex(".*-t\\d{8}T\\d{6}-%\\.json"))) << name;
}

// Each setting is in force and does not change the program's results.
class Setting : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(Setting, KeepsTheProgramRight) {
  const Environment extra = {{GetParam().first, GetParam().second}};
  const PreloadedRun result =
      expect_same("probe_runtime_shared iterations=30 threads=3", 0, 1, extra);
  expect_counts(result);
  bool named = false;
  for (const nlohmann::json& report : result.reports) {
    named = named || report.dump().find(GetParam().first) != std::string::npos;
  }
  EXPECT_TRUE(named) << "the report does not name the setting in force";
}

INSTANTIATE_TEST_SUITE_P(
    All, Setting,
    testing::Values(
        std::make_pair("CUPOOL_BACKEND", "pool"), std::make_pair("CUPOOL_BACKEND", "malloc"),
        std::make_pair("CUPOOL_POOL", "default"), std::make_pair("CUPOOL_RELEASE_THRESHOLD", "0"),
        std::make_pair("CUPOOL_MAX_SIZE", "64M"), std::make_pair("CUPOOL_PREALLOC", "128M"),
        std::make_pair("CUPOOL_REUSE_FOLLOW_EVENT_DEPENDENCIES", "0"),
        std::make_pair("CUPOOL_REUSE_ALLOW_OPPORTUNISTIC", "0"),
        std::make_pair("CUPOOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES", "1"),
        std::make_pair("CUPOOL_MAX_BLOCK", "64K"), std::make_pair("CUPOOL_MAX_CACHED", "0"),
        std::make_pair("CUPOOL_MAX_CACHED", "1M")),
    [](const auto& row) { return std::to_string(row.index) + std::string(row.param.first); });

TEST(Options, MaxBlockPassesLargeRequestsThrough) {
  const PreloadedRun result =
      expect_same("probe_runtime_shared", 0, 1, {{"CUPOOL_MAX_BLOCK", "64K"}});
  EXPECT_GT(result.counter("served_passthrough_total"), 0u);
  EXPECT_LT(result.counter("served_passthrough_total"), result.counter("malloc_calls_total"));
}

TEST(Options, MessagesGoToTheLogFile) {
  const ScratchFolder folder;
  const std::string log = folder.path() + "/log-%p.txt";
  const PreloadedRun result = run_preloaded(
      "probe_runtime_shared",
      {{"CUPOOL_LOG_LEVEL", "debug"}, {"CUPOOL_LOG_FILE", log}, {"CUPOOL_BACKEND", "pools"}});
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_EQ(result.process.err, "");
  const std::vector<std::string> files = folder.files();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_NE(files[0].find(std::to_string(result.process.pid)), std::string::npos);
  EXPECT_NE(read_file(files[0]).find("CUPOOL_BACKEND"), std::string::npos);
}

TEST(Options, ProfileGivesOptionsAndTheEnvironmentWins) {
  const ScratchFolder folder;
  const std::string profile = folder.path() + "/profile";
  FILE* file = std::fopen(profile.c_str(), "w");
  ASSERT_NE(file, nullptr);
  std::fputs("# a profile\nCUPOOL_MAX_BLOCK=64K\n", file);
  std::fclose(file);
  const PreloadedRun from_profile =
      expect_same("probe_runtime_shared", 0, 1, {{"CUPOOL_PROFILE", profile}});
  EXPECT_GT(from_profile.counter("served_passthrough_total"), 0u);
  const PreloadedRun overridden = expect_same(
      "probe_runtime_shared", 0, 1, {{"CUPOOL_PROFILE", profile}, {"CUPOOL_MAX_BLOCK", "100%"}});
  EXPECT_EQ(overridden.counter("served_passthrough_total"), 0u);
}

// A real launcher, if the machine has one: each rank has a file with its number.
TEST(Ranks, OfARealMpirunHaveAReportEach) {
  if (access("/usr/bin/mpirun", X_OK) != 0) {
    GTEST_SKIP() << "/usr/bin/mpirun is not installed (Debian: openmpi-bin)";
  }
  const ScratchFolder folder;
  Environment environment = base_environment();
  add_preload(&environment);
  const std::string preload = environment.at("LD_PRELOAD");
  environment.erase("LD_PRELOAD");  // for the ranks alone
  environment["CUPOOL_STATS"] = "json";
  environment["CUPOOL_STATS_FILE"] = folder.path() + "/rank-%r.json";
  environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1";
  environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1";
  environment["TMPDIR"] = folder.path();
  Command command;
  command.argv = {"/usr/bin/mpirun",
                  "--oversubscribe",
                  "-n",
                  "4",
                  "/usr/bin/env",
                  "LD_PRELOAD=" + preload,
                  probe_path("probe_runtime_shared")};
  command.environment = environment;
  const ProcessResult result = run(command);
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  for (const char* rank : {"0", "1", "2", "3"}) {
    const std::string text = read_file(folder.path() + "/rank-" + rank + ".json");
    const nlohmann::json report = nlohmann::json::parse(text, nullptr, false);
    ASSERT_FALSE(report.is_discarded()) << "rank " << rank << ": " << result.describe();
    EXPECT_EQ(report.at("process").at("rank"), rank);
    EXPECT_EQ(report.at("devices").at(0).at("counters").at("malloc_calls_total"), 80);
  }
}

}  // namespace
}  // namespace preload
