// SPDX-License-Identifier: Apache-2.0
// Contract 11: processes that are made by a process that uses the GPU, or will. No hang, no
// crash, one report for each process that allocated GPU memory, none from any other.
#include "harness.h"

namespace preload {
namespace {

struct Multiplied {
  const char* mode;
  size_t reports;
};

class Fork : public testing::TestWithParam<Multiplied> {};

// I6.
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

struct Children {
  const char* mode;
  size_t reports;
};

class Multiplying : public testing::TestWithParam<Children> {};

// I6.
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

TEST(ForkingIntoAPidNamespace, MakesNoSecondReportOfOneNumber) {
  Command command;
  command.environment = base_environment();
  command.argv = {"unshare", "--user", "--map-root-user", "--pid", "--fork", "true"};
  if (run(command).exit_code != 0) GTEST_SKIP() << "no namespaces for this user";
  command.argv.back() = probe_path("probe_life_fork");
  command.argv.push_back("mode=namespace");
  add_preload(&command.environment);
  const ProcessResult result = run(command);
  EXPECT_EQ(result.out, "number in its namespace 1\nchild ended 0\n") << result.describe();
  const size_t first = result.err.find("\n  Time    ");
  EXPECT_NE(first, std::string::npos) << result.describe();
  EXPECT_EQ(result.err.find("\n  Time    ", first + 1), std::string::npos) << result.describe();
}

// Where nothing was remembered of call sites, closing a library looks at nothing.
TEST(ForkingBesideLoads, LeavesTheChildFreeToClose) {
  if (!tested_build().sanitizer.empty()) GTEST_SKIP() << "its dlopen has locks of its own";
  const std::string probe =
      "probe_life_fork mode=loads library=" + probe_path("agents/libmpi.so.40");
  EXPECT_EQ(run_plain(probe).out, "children that ended wrongly 0\n");
  expect_same(probe, 0, 0);
}

}  // namespace
}  // namespace preload
