// SPDX-License-Identifier: Apache-2.0
// The % letters of file names.
#include "util/path_pattern.h"

#include <gtest/gtest.h>
#include <time.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "temporary_folder.h"
#include "util/launcher.h"

namespace cupool::util {
namespace {

using test::ScopedVariable;

std::string expand_path_pattern(const char* pattern) {
  return util::expand_path_pattern(pattern, 0);
}

// An environment without a launcher, a job or a node, whatever started the tests.
class PathPattern : public testing::Test {
 protected:
  PathPattern() {
    for (const char* name : {
#define CUPOOL_LAUNCHER(rank, ranks, beside, launcher) rank, ranks, beside,
#define CUPOOL_JOB(variable, system) variable,
#define CUPOOL_NODE(variable, system) variable,
#include "util/launchers.def"
         }) {
      if (*name != '\0') unset_.push_back(std::make_unique<ScopedVariable>(name, nullptr));
    }
  }

 private:
  std::vector<std::unique_ptr<ScopedVariable>> unset_;
};

struct Row {
  const char* rank;
  const char* ranks;
  const char* beside;
  const char* launcher;
};
constexpr Row kRows[] = {
#define CUPOOL_LAUNCHER(rank, ranks, beside, launcher) {rank, ranks, beside, launcher},
#include "util/launchers.def"
};
struct NamedVariable {
  const char* variable;
  const char* system;
};
constexpr NamedVariable kJobs[] = {
#define CUPOOL_JOB(variable, system) {variable, system},
#include "util/launchers.def"
};

TEST_F(PathPattern, LeavesPlainNamesAlone) {
  EXPECT_EQ(expand_path_pattern(""), "");
  EXPECT_EQ(expand_path_pattern("/tmp/report.txt"), "/tmp/report.txt");
}

TEST_F(PathPattern, ExpandsProcessAndHost) {
  EXPECT_EQ(expand_path_pattern("a%pb"), "a" + std::to_string(::getpid()) + "b");
  EXPECT_EQ(expand_path_pattern("%h"), host_name());
  EXPECT_FALSE(host_name().empty());
}

TEST_F(PathPattern, ExpandsTimeAsDateTTime) {
  const ScopedVariable zone("TZ", "UTC");
  ::tzset();
  EXPECT_EQ(util::expand_path_pattern("%t", 1'763'653'927'999'999'999), "20251120T155207");
}

TEST_F(PathPattern, RankIsZeroWithoutALauncher) {
  EXPECT_EQ(launcher_rank(), "");
  EXPECT_EQ(expand_path_pattern("r%r"), "r0");
}

// From the last row of the table to the first: each newly set one wins.
TEST_F(PathPattern, RankComesFromTheFirstLauncherThatGaveOne) {
  std::vector<std::unique_ptr<ScopedVariable>> set;
  for (auto row = std::rbegin(kRows); row != std::rend(kRows); ++row) {
    SCOPED_TRACE(row->launcher);
    const std::string value = std::string("of_") + row->launcher;
    set.push_back(std::make_unique<ScopedVariable>(row->rank, value.c_str()));
    if (*row->beside != '\0') set.push_back(std::make_unique<ScopedVariable>(row->beside, "1"));
    if (*row->ranks != '\0') set.push_back(std::make_unique<ScopedVariable>(row->ranks, "12"));
    EXPECT_EQ(launcher_rank(), value);
    EXPECT_EQ(launcher_ranks(), *row->ranks == '\0' ? "" : "12");
    EXPECT_EQ(expand_path_pattern("%r"), value);
  }
}

TEST_F(PathPattern, EveryRowOfTheTableAloneGivesTheRank) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.launcher);
    const ScopedVariable rank(row.rank, "17");
    std::unique_ptr<ScopedVariable> beside;
    if (*row.beside != '\0') beside = std::make_unique<ScopedVariable>(row.beside, "1");
    EXPECT_EQ(launcher_rank(), "17");
  }
}

TEST_F(PathPattern, JobAndNodeAreThoseOfTheBatchSystem) {
  EXPECT_EQ(expand_path_pattern("%j"), "0") << "outside a job";
  std::string host = host_name();
  EXPECT_EQ(expand_path_pattern("%n"), host.substr(0, host.find('.', 1)));
  for (const NamedVariable& job : kJobs) {
    SCOPED_TRACE(job.system);
    const ScopedVariable set(job.variable, "123.server/x");
    EXPECT_EQ(launcher_job(), "123.server/x");
    EXPECT_EQ(expand_path_pattern("a%j.json"), "a123.server_x.json");
  }
  const ScopedVariable kubernetes("NODE_NAME", "worker");
  EXPECT_EQ(expand_path_pattern("%n"), "worker");
  const ScopedVariable slurm("SLURMD_NODENAME", "node7");
  EXPECT_EQ(expand_path_pattern("%n"), "node7");
}

TEST_F(PathPattern, UnknownLettersAreNamed) {
  EXPECT_EQ(unknown_letters(""), "");
  EXPECT_EQ(unknown_letters("/tmp/%p-%h-%r-%j-%n-%t-%%z.json"), "");
  EXPECT_EQ(unknown_letters("a%zb%d%"), "%z, %d, %");
}

TEST_F(PathPattern, RanksAddTheirsToANameThatDoesNotTellThemApart) {
  const test::TemporaryFolder folder;
  const auto own = [](const std::string& pattern, bool expected) {
    bool added = false;
    std::string path = own_path(pattern, 0, &added);
    EXPECT_EQ(added, expected) << pattern;
    return path;
  };
  EXPECT_EQ(own("run.json", false), "run.json") << "without a launcher";
  EXPECT_FALSE(warns_of_added_rank());
  const ScopedVariable first("SLURM_PROCID", "0");
  EXPECT_EQ(own("run.json", false), "run.json");
  const ScopedVariable other("OMPI_COMM_WORLD_RANK", "12");
  EXPECT_EQ(own("run.json", true), "run.rank12.json");
  EXPECT_EQ(own("/a.b/report", true), "/a.b/report.rank12");
  EXPECT_EQ(own(folder.file("%t.json"), true),
            util::expand_path_pattern(folder.file("%t.rank12.json"), 0));
  EXPECT_EQ(own("%r.json", false), "12.json");
  EXPECT_EQ(own("%p.json", false), std::to_string(::getpid()) + ".json");
  EXPECT_EQ(own("%%r.json", true), "%r.rank12.json");
  for (const char* shared : {"", "/dev/null", "/dev/stderr", "/dev/fd/3"}) {
    EXPECT_EQ(own(shared, false), shared);
  }
  EXPECT_FALSE(warns_of_added_rank());
  const ScopedVariable second("OMPI_COMM_WORLD_RANK", "1");
  EXPECT_TRUE(warns_of_added_rank());
}

// Each launcher with all that it sets, as its documentation lists it.
TEST_F(PathPattern, EveryLauncherIsUnderstood) {
  using Variables = std::vector<std::pair<const char*, const char*>>;
  const struct {
    const char* launcher;
    Variables variables;
  } launchers[] = {
      {"Open MPI",
       {{"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_SIZE", "8"}, {"PMIX_RANK", "5"}}},
      {"PMIx", {{"PMIX_RANK", "5"}, {"PMIX_NAMESPACE", "prterun-1"}}},
      {"MPICH's Hydra", {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"}}},
      {"Intel MPI in a Slurm batch script", {{"PMI_RANK", "5"}, {"SLURM_PROCID", "0"}}},
      {"Cray PALS", {{"PALS_RANKID", "5"}, {"PALS_LOCAL_RANKID", "1"}}},
      {"MVAPICH", {{"MV2_COMM_WORLD_RANK", "5"}, {"MV2_COMM_WORLD_LOCAL_RANK", "1"}}},
      {"srun", {{"SLURM_PROCID", "5"}, {"SLURM_LOCALID", "1"}, {"SLURM_NTASKS", "8"}}},
      {"torchrun", {{"RANK", "5"}, {"LOCAL_RANK", "1"}, {"TORCHELASTIC_RUN_ID", "none"}}},
      {"Flux in a Slurm job",
       {{"FLUX_TASK_RANK", "5"}, {"FLUX_JOB_SIZE", "8"}, {"SLURM_PROCID", "0"}}},
      {"jsrun", {{"JSM_NAMESPACE_RANK", "5"}, {"JSM_NAMESPACE_SIZE", "8"}}},
      {"an indexed job of Kubernetes", {{"JOB_COMPLETION_INDEX", "5"}}},
      {"mpirun in a pod of Kubernetes",
       {{"OMPI_COMM_WORLD_RANK", "5"}, {"JOB_COMPLETION_INDEX", "1"}}},
      {"torchrun in a Slurm batch script",
       {{"RANK", "5"}, {"TORCHELASTIC_RUN_ID", "7"}, {"SLURM_PROCID", "0"}}},
      {"torchrun under mpirun",
       {{"RANK", "5"}, {"LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"PMIX_RANK", "1"}}},
      {"mpirun from an environment of torchrun's agent",
       {{"TORCHELASTIC_RUN_ID", "7"}, {"OMPI_COMM_WORLD_RANK", "5"}}},
  };
  for (const auto& each : launchers) {
    SCOPED_TRACE(each.launcher);
    std::vector<std::unique_ptr<ScopedVariable>> set;
    for (const auto& [name, value] : each.variables) {
      set.push_back(std::make_unique<ScopedVariable>(name, value));
    }
    EXPECT_EQ(launcher_rank(), "5");
  }
}

// PMIx tells a rank, and not how many there are.
TEST_F(PathPattern, SlurmCountsTheRanksThatItServesByPmix) {
  const ScopedVariable rank("PMIX_RANK", "5");
  const ScopedVariable tasks("SLURM_STEP_NUM_TASKS", "8");
  EXPECT_EQ(launcher_ranks(), "") << "the tasks of a step may be daemons of another launcher";
  const ScopedVariable served("SLURM_PMIX_MAPPING_SERV", "(vector,(0,2,4))");
  EXPECT_EQ(launcher_rank(), "5");
  EXPECT_EQ(launcher_ranks(), "8");
}

TEST_F(PathPattern, AnEmptyRankIsNone) {
  ScopedVariable empty("PMI_RANK", "");
  ScopedVariable set("RANK", "5");
  EXPECT_EQ(expand_path_pattern("%r"), "5");
}

TEST_F(PathPattern, ARankCannotChooseTheFolder) {
  ScopedVariable set("RANK", "../etc/x");
  EXPECT_EQ(expand_path_pattern("/tmp/%r"), "/tmp/.._etc_x");
}

TEST_F(PathPattern, KeepsWhatItDoesNotKnow) {
  EXPECT_EQ(expand_path_pattern("%%p %z %"), "%p %z %");
}

}  // namespace
}  // namespace cupool::util
