// SPDX-License-Identifier: Apache-2.0
// The % letters of file names.
#include "util/path_pattern.h"

#include <gtest/gtest.h>
#include <time.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "temporary_folder.h"

namespace cupool::util {
namespace {

using test::ScopedVariable;

std::string expand_path_pattern(const char* pattern) {
  return util::expand_path_pattern(pattern, 0);
}

// An environment without a launcher, whatever started the tests.
class PathPattern : public testing::Test {
 private:
  ScopedVariable open_mpi_{"OMPI_COMM_WORLD_RANK", nullptr};
  ScopedVariable pmix_{"PMIX_RANK", nullptr};
  ScopedVariable pmi_{"PMI_RANK", nullptr};
  ScopedVariable slurm_{"SLURM_PROCID", nullptr};
  ScopedVariable pals_{"PALS_RANKID", nullptr};
  ScopedVariable mvapich_{"MV2_COMM_WORLD_RANK", nullptr};
  ScopedVariable torchrun_{"RANK", nullptr};
  ScopedVariable torchrun_local_{"LOCAL_RANK", nullptr};
  ScopedVariable torchrun_job_{"TORCHELASTIC_RUN_ID", nullptr};
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

TEST_F(PathPattern, RankComesFromTheFirstLauncherThatGaveOne) {
  // From the last in precedence to the first: each newly set one wins.
  std::vector<std::unique_ptr<ScopedVariable>> set;
  for (const char* name : {"RANK", "SLURM_PROCID", "MV2_COMM_WORLD_RANK", "PALS_RANKID", "PMI_RANK",
                           "PMIX_RANK", "OMPI_COMM_WORLD_RANK"}) {
    const std::string value = "of_" + std::string(name);
    set.push_back(std::make_unique<ScopedVariable>(name, value.c_str()));
    EXPECT_EQ(expand_path_pattern("%r"), value);
  }
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
