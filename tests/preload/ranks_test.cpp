// SPDX-License-Identifier: Apache-2.0
// Ranks of a job share an environment, a terminal and the names of their files (docs/statistics.md,
// Ranks): nothing is lost, and one rank's report is not buried under the others'.
#include <algorithm>

#include "harness.h"

namespace preload {
namespace {

// Starts `ranks` processes of a probe as Open MPI's mpirun would, one after the other.
ProcessResult launch(int ranks, const std::string& probe, const Environment& extra) {
  Command command;
  command.environment = with(base_environment(), extra);
  add_preload(&command.environment);
  command.argv = {
      "/bin/sh", "-c",
      "rank=0; while [ $rank -lt " + std::to_string(ranks) +
          " ]; do OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=" + std::to_string(ranks) + " " +
          probe_path(probe) + " || exit 1; rank=$((rank + 1)); done"};
  return run(command);
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t number = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++number;
  return number;
}

std::vector<std::string> names_in(const ScratchFolder& folder) {
  std::vector<std::string> names;
  for (const std::string& file : folder.files()) names.push_back(file.substr(file.rfind('/') + 1));
  std::sort(names.begin(), names.end());
  return names;
}

class RanksOfAJob : public testing::Test {
 protected:
  void SetUp() override {
    if (tested_build().has_thread_sanitizer()) GTEST_SKIP() << "a shell dies of its runtime";
  }
};

TEST_F(RanksOfAJob, TheFirstReportsAndTheOthersHaveALineEach) {
  const ProcessResult result = launch(3, "probe_runtime_shared", {});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_EQ(occurrences(result.err, "\n  Device       0"), 1u) << result.err;
  EXPECT_TRUE(contains(result.err, ", rank 0,")) << result.err;
  for (const char* rank : {"1", "2"}) {
    EXPECT_TRUE(contains(result.err, std::string("\ncupool: rank ") + rank + ", process "))
        << result.err;
  }
  EXPECT_EQ(occurrences(result.err, ": 80 allocations ("), 2u) << result.err;
}

TEST_F(RanksOfAJob, AllReportWhereTheSettingSaysSo) {
  const ProcessResult result = launch(3, "probe_runtime_shared", {{"CUPOOL_STATS_RANKS", "all"}});
  EXPECT_EQ(occurrences(result.err, "\n  Device       0"), 3u) << result.err;
}

TEST_F(RanksOfAJob, AnObservedRankTellsItsVerdict) {
  const ProcessResult result = launch(2, "probe_runtime_shared", {{"CUPOOL_MODE", "observe"}});
  EXPECT_TRUE(contains(result.err, "\ncupool: rank 1, process ")) << result.err;
  EXPECT_EQ(occurrences(result.err, "pooling would save at most"), 2u) << result.err;
}

TEST_F(RanksOfAJob, ThatShareANameEachHaveAFile) {
  const ScratchFolder folder;
  const ProcessResult result =
      launch(3, "probe_runtime_shared",
             {{"CUPOOL_STATS", "json,text"}, {"CUPOOL_STATS_FILE", folder.path() + "/run.json"}});
  EXPECT_EQ(names_in(folder),
            (std::vector<std::string>{"run.json", "run.rank1.json", "run.rank1.txt",
                                      "run.rank2.json", "run.rank2.txt", "run.txt"}))
      << result.err;
  EXPECT_EQ(occurrences(result.err, "warning"), 1u) << result.err;
  EXPECT_TRUE(contains(result.err, "does not tell ranks apart")) << result.err;
  EXPECT_TRUE(contains(result.err, "%r")) << result.err;
  const nlohmann::json second = nlohmann::json::parse(read_file(folder.path() + "/run.rank1.json"));
  EXPECT_EQ(second.at("process").at("rank"), "1");
  EXPECT_EQ(second.at("process").at("ranks"), 3);
  EXPECT_TRUE(contains(read_file(folder.path() + "/run.rank2.txt"), "\n  Device       0"))
      << "files have the whole report";
}

TEST_F(RanksOfAJob, ThatShareATraceEachHaveAFile) {
  const ScratchFolder folder;
  const ProcessResult result =
      launch(2, "probe_runtime_shared",
             {{"CUPOOL_STATS", "off"}, {"CUPOOL_TRACE", folder.path() + "/run.csv"}});
  EXPECT_EQ(names_in(folder), (std::vector<std::string>{"run.csv", "run.rank1.csv"}));
  EXPECT_EQ(occurrences(result.err, "warning"), 1u) << result.err;
}

TEST_F(RanksOfAJob, ANameWithTheRankIsAsWritten) {
  const ScratchFolder folder;
  const ProcessResult result =
      launch(2, "probe_runtime_shared",
             {{"CUPOOL_STATS_FILE", folder.path() + "/%j-%r.txt"}, {"SLURM_JOB_ID", "77"}});
  EXPECT_EQ(names_in(folder), (std::vector<std::string>{"77-0.txt", "77-1.txt"}));
  EXPECT_EQ(result.err, "");
}

TEST_F(RanksOfAJob, LettersThatMeanNothingAreWarnedOfOnce) {
  const ScratchFolder folder;
  const ProcessResult result =
      run_with_library("probe_runtime_shared", {{"CUPOOL_STATS_FILE", folder.path() + "/%z.txt"}});
  EXPECT_EQ(names_in(folder), std::vector<std::string>{"%z.txt"});
  EXPECT_EQ(occurrences(result.err, "warning"), 1u) << result.err;
  EXPECT_TRUE(contains(result.err, "%z means nothing")) << result.err;
}

}  // namespace
}  // namespace preload
