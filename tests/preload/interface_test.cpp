// SPDX-License-Identifier: Apache-2.0
// The C interface (include/cupool/cupool.h) in a program that runs with cupool and without.
#include "harness.h"

namespace preload {
namespace {

TEST(Interface, IsNotNeeded) {
  const ProcessResult result = run_plain("probe_interface before=1");
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_EQ(result.out, "cupool is not there\n");
}

TEST(Interface, GivesFiguresAndTakesIdleMemoryBack) {
  const PreloadedRun result = run_preloaded("probe_interface before=1 child=1");
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_EQ(result.process.out.rfind("cupool 0.", 0), 0u) << result.process.out;
  EXPECT_EQ(result.process.err, "");
  ASSERT_EQ(result.reports.size(), 1u);
  EXPECT_EQ(result.reports[0].at("snapshot_number"), 0) << "the report at exit comes all the same";
  expect_identity(result.reports[0]);
}

TEST(Interface, DumpsInTheFormatOfTheEnding) {
  const ScratchFolder folder;
  const struct {
    const char* name;
    const char* begins;
  } files[] = {
      {"a.json", "{\n"}, {"a.csv", "timestamp,"}, {"a.prom", "# HELP"}, {"a.log", "cupool "}};
  for (const auto& file : files) {
    const std::string path = folder.path() + "/" + file.name;
    const PreloadedRun result = run_preloaded("probe_interface dump=" + path);
    EXPECT_EQ(result.process.exit_code, 0) << result.describe();
    const std::string text = read_file(path);
    EXPECT_EQ(text.rfind(file.begins, 0), 0u) << file.name << ":\n" << text.substr(0, 80);
    EXPECT_EQ(result.reports.size(), 1u);
  }
  const auto report = nlohmann::json::parse(read_file(folder.path() + "/a.json"), nullptr, false);
  ASSERT_FALSE(report.is_discarded());
  EXPECT_EQ(report.at("snapshot_number"), 1);
  EXPECT_EQ(report.at("devices").at(0).at("gauges").at("leaked_blocks").at("current"), 1);
}

TEST(Interface, DumpsToWhereReportsGo) {
  const PreloadedRun result = run_preloaded("probe_interface null=1");
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_EQ(result.reports.size(), 2u) << "the snapshot and the one at exit";
}

TEST(Interface, IsAtRestWhenCupoolIsOff) {
  const PreloadedRun result =
      run_preloaded("probe_interface off=1 before=1", {{"CUPOOL_ENABLE", "0"}});
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_TRUE(result.reports.empty());
}

}  // namespace
}  // namespace preload
