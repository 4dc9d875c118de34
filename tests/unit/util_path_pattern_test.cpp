// The % letters of file names.
#include "util/path_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "temporary_folder.h"

namespace cupool::util {
namespace {

using test::ScopedVariable;

// An environment without a launcher, whatever started the tests.
class PathPattern : public testing::Test {
 private:
  ScopedVariable open_mpi_{"OMPI_COMM_WORLD_RANK", nullptr};
  ScopedVariable pmix_{"PMIX_RANK", nullptr};
  ScopedVariable pmi_{"PMI_RANK", nullptr};
  ScopedVariable slurm_{"SLURM_PROCID", nullptr};
  ScopedVariable torchrun_{"RANK", nullptr};
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
  EXPECT_THAT(
      expand_path_pattern("%t"),
      testing::MatchesRegex("20[0-9][0-9][01][0-9][0-3][0-9]T[0-2][0-9][0-5][0-9][0-6][0-9]"));
}

TEST_F(PathPattern, RankIsZeroWithoutALauncher) {
  EXPECT_EQ(launcher_rank(), "");
  EXPECT_EQ(expand_path_pattern("r%r"), "r0");
}

TEST_F(PathPattern, RankComesFromTheFirstLauncherThatGaveOne) {
  // From the last in precedence to the first: each newly set one wins.
  std::vector<std::unique_ptr<ScopedVariable>> set;
  for (const char* name :
       {"RANK", "SLURM_PROCID", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"}) {
    const std::string value = "of_" + std::string(name);
    set.push_back(std::make_unique<ScopedVariable>(name, value.c_str()));
    EXPECT_EQ(expand_path_pattern("%r"), value);
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
