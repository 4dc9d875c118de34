// SPDX-License-Identifier: Apache-2.0
// What `cupool report` makes of call sites: folded stacks, speedscope's format, text.
#include <regex>

#include "cli/page/sites.h"
#include "command.h"
#include "example_report.h"

namespace cli {
namespace {

using nlohmann::json;
using preload::contains;
using preload::ScratchFolder;

json site(const std::vector<int>& frames, uint64_t bytes, uint64_t peak, uint64_t waited) {
  return {{"samples", 9},         {"calls", bytes / 1000}, {"bytes", bytes},
          {"live_calls", 0},      {"live_bytes", 0},       {"peak_bytes", peak},
          {"temporary_calls", 0}, {"freed_calls", 4},      {"waited_calls", waited},
          {"frames", frames}};
}

json report_with_sites() {
  json report = example_report();
  report["sites"] = {
      {"interval_bytes", 524288},
      {"modules", {{{"path", "/opt/nowhere/libwork.so"}, {"build_id", "00ff"}}}},
      {"frames",
       {{{"module", 0}, {"offset", 16}},
        {{"module", 0}, {"offset", 32}},
        {{"module", nullptr}, {"offset", 48}}}},
      {"sites", {site({0, 2}, 6'000'000, 0, 0), site({1, 2}, 2'000'000, 1'000'000, 2)}},
      {"others", site({}, 0, 0, 0)},
      {"unfollowed_samples", 0},
      {"lost_samples", 0}};
  report["sites"]["others"].erase("frames");
  report["sites"]["others"]["samples"] = 0;
  return report;
}

TEST(SitesReport, IsFoldedWithTheOutermostFirst) {
  const ScratchFolder folder;
  const std::string file = write_report(folder.path(), "r.json", report_with_sites());
  const auto bytes = cupool({"report", "--collapsed", file});
  EXPECT_EQ(bytes.out, "0x30;libwork.so+0x10 6000000\n0x30;libwork.so+0x20 2000000\n");
  EXPECT_EQ(bytes.exit_code, 0) << bytes.describe();
  const auto waited = cupool({"report", "--collapsed", "--measure", "waited_calls", file});
  EXPECT_EQ(waited.out, "0x30;libwork.so+0x20 2\n");
}

TEST(SitesReport, IsAFileOfSpeedscope) {
  const ScratchFolder folder;
  const std::string file = write_report(folder.path(), "r.json", report_with_sites());
  const json scope = json::parse(cupool({"report", "--speedscope", file}).out);
  EXPECT_EQ(scope.at("$schema"), "https://www.speedscope.app/file-format-schema.json");
  ASSERT_EQ(scope.at("profiles").size(), 4u);
  const char* const names[] = {"allocated bytes", "live at the peak", "allocations",
                               "frees that waited"};
  for (size_t i = 0; i < 4; ++i) {
    const json& profile = scope.at("profiles").at(i);
    EXPECT_EQ(profile.at("name"), names[i]);
    EXPECT_EQ(profile.at("type"), "sampled");
    ASSERT_EQ(profile.at("samples").size(), profile.at("weights").size());
    uint64_t sum = 0;
    for (const json& weight : profile.at("weights")) sum += weight.get<uint64_t>();
    EXPECT_EQ(profile.at("endValue"), sum);
    for (const json& stack : profile.at("samples")) {
      for (const json& frame : stack) {
        EXPECT_LT(frame.get<size_t>(), scope.at("shared").at("frames").size());
      }
    }
  }
  const json& first = scope.at("profiles").at(0);
  EXPECT_EQ(
      scope.at("shared").at("frames").at(first.at("samples").at(0).at(0).get<size_t>()).at("name"),
      "0x30");
}

TEST(SitesReport, NeedsSitesAndOneReport) {
  const ScratchFolder folder;
  const std::string with = write_report(folder.path(), "with.json", report_with_sites());
  const std::string without = write_report(folder.path(), "without.json", example_report());
  EXPECT_EQ(cupool({"report", "--collapsed", without}).exit_code, 2);
  EXPECT_TRUE(contains(cupool({"report", "--collapsed", without}).err, "CUPOOL_SITES=1"));
  EXPECT_EQ(cupool({"report", "--speedscope", with, without}).exit_code, 2);
  json wrong = report_with_sites();
  wrong["sites"]["sites"][0]["frames"][0] = 3;
  EXPECT_EQ(cupool({"report", write_report(folder.path(), "w.json", wrong)}).exit_code, 2);
}

TEST(SitesReport, NamesWhatRanAndOnlyThat) {
  const ScratchFolder folder;
  const preload::PreloadedRun run =
      preload::run_preloaded("probe_sites rounds=50", {{"CUPOOL_SITES", "2"}});
  json report = run.reports.at(0);
  const std::string right = cupool({"report", "--collapsed", "--measure", "calls",
                                    write_report(folder.path(), "a.json", report)})
                                .out;
  EXPECT_TRUE(std::regex_search(right, std::regex(";main;.*work.*;site_large 5\n"))) << right;
  const std::string text = cupool({"report", folder.path() + "/a.json"}).out;
  EXPECT_TRUE(contains(text, "Where memory comes from")) << text;
  EXPECT_TRUE(contains(text, "site_kept < main")) << text;
  for (json& module : report["sites"]["modules"]) module["build_id"] = "0123";
  const std::string wrong = cupool({"report", "--collapsed", "--measure", "calls",
                                    write_report(folder.path(), "b.json", report)})
                                .out;
  EXPECT_FALSE(contains(wrong, "site_large")) << "another build: " << wrong;
  EXPECT_TRUE(contains(wrong, "probe_sites+0x")) << wrong;
}

}  // namespace
}  // namespace cli
