// SPDX-License-Identifier: Apache-2.0
// What `cupool report` makes of call sites: folded stacks, speedscope's format, text, flame graphs.
#include <filesystem>
#include <fstream>
#include <regex>

#include "cli/page/flame.h"
#include "cli/page/html.h"
#include "cli/page/sites.h"
#include "command.h"
#include "example_report.h"

namespace cli {
namespace {

using nlohmann::json;
using preload::contains;
using preload::ProcessResult;
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
  json other = example_report();
  other["process"]["pid"] = 43;
  const std::string without = write_report(folder.path(), "without.json", other);
  EXPECT_EQ(cupool({"report", "--collapsed", without}).exit_code, 2);
  EXPECT_TRUE(contains(cupool({"report", "--collapsed", without}).err, "CUPOOL_SITES=1"));
  EXPECT_EQ(cupool({"report", "--speedscope", with, without}).exit_code, 2);
  json none = report_with_sites();
  none["sites"]["sites"] = json::array();
  none["sites"].erase("others");
  const ProcessResult empty =
      cupool({"report", "--collapsed", write_report(folder.path(), "none.json", none)});
  EXPECT_EQ(empty.exit_code, 2) << empty.describe();
  EXPECT_TRUE(contains(empty.err, "CUPOOL_SITES samples memory of cudaMalloc alone")) << empty.err;
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
  json of_other = report;
  of_other["process"]["pid"] = 43;
  const std::string other_file = write_report(folder.path(), "b.json", of_other);
  const std::string two = cupool({"report", folder.path() + "/a.json", other_file}).out;
  EXPECT_FALSE(contains(two, "site_large")) << two;
  for (const json& other : {json("0123"), json(nullptr)}) {
    for (json& module : report["sites"]["modules"]) module["build_id"] = other;
    const std::string wrong = cupool({"report", "--collapsed", "--measure", "calls",
                                      write_report(folder.path(), "b.json", report)})
                                  .out;
    EXPECT_FALSE(contains(wrong, "site_large")) << "another build: " << wrong;
    EXPECT_TRUE(contains(wrong, "probe_sites+0x")) << wrong;
  }
}

// A stand-in that notes what it is asked for, first on the path.
TEST(SitesReport, AsksADebuginfodForBuildIdsOnly) {
  const ScratchFolder folder;
  const std::string tool = folder.path() + "/debuginfod-find";
  std::ofstream(tool) << "#!/bin/sh\necho \"$2\" >> " << folder.path() << "/asked\n";
  std::filesystem::permissions(tool, std::filesystem::perms::owner_all);
  json report = report_with_sites();
  const std::string good = "00112233445566778899aabbccddeeff00112233";
  const std::vector<json> ids = {good,       nullptr,     "",
                                 "00ff",     "--help",    "/etc/passwd",
                                 good + "0", good + good, "00112233445566778899aabbccddeeFF"};
  for (size_t i = 0; i < ids.size(); ++i) {
    report["sites"]["modules"][i] = {{"path", "/opt/nowhere/" + std::to_string(i)},
                                     {"build_id", ids[i]}};
    report["sites"]["frames"][i] = {{"module", i}, {"offset", 16}};
  }
  const std::string file = write_report(folder.path(), "r.json", report);
  const auto ended = cupool(
      {"report", "--collapsed", file},
      {{"DEBUGINFOD_URLS", "http://localhost:1"}, {"PATH", folder.path() + ":/usr/bin:/bin"}});
  EXPECT_EQ(ended.exit_code, 0) << ended.describe();
  EXPECT_EQ(preload::read_file(folder.path() + "/asked"), good + "\n");
}

TEST(SitesReport, IsBounded) {
  const ScratchFolder folder;
  json report = report_with_sites();
  json& frames = report["sites"]["sites"][0]["frames"];
  frames = std::vector<int>(1024, 1);
  EXPECT_EQ(cupool({"report", write_report(folder.path(), "a.json", report)}).exit_code, 0);
  frames.push_back(1);
  const auto deep = cupool({"report", write_report(folder.path(), "b.json", report)});
  EXPECT_EQ(deep.exit_code, 2);
  EXPECT_TRUE(contains(deep.err, "at most 1,024 frames")) << deep.err;
  report = report_with_sites();
  report["sites"]["sites"] = std::vector<json>(65537, json::object());
  const auto many = cupool({"report", write_report(folder.path(), "c.json", report)});
  EXPECT_EQ(many.exit_code, 2);
  EXPECT_TRUE(contains(many.err, "at most 65,536 call sites")) << many.err;
}

TEST(SitesReport, SaysWhatIsNotInTheFigures) {
  json report = report_with_sites();
  const auto text = [&report] { return cupool::cli::sites_text(parsed(report).sites); };
  EXPECT_FALSE(contains(text(), "too low"));
  report["sites"]["lost_samples"] = 3;
  EXPECT_TRUE(contains(text(), "3 allocations and frees could not be noted")) << text();
  report["sites"]["unfollowed_samples"] = 5;
  EXPECT_TRUE(contains(text(), "5 samples were not followed")) << text();
  report["sites"]["others"]["samples"] = 1;
  EXPECT_TRUE(contains(text(), "stacks without a known frame")) << text();
}

// The widths of the rectangles whose tooltip begins with `name`.
std::vector<double> widths_of(const std::string& svg, const std::string& name) {
  std::vector<double> widths;
  const std::regex shape("<title>" + name + ":[^<]*</title><rect [^>]*width=\"([0-9.]+)\"");
  for (std::sregex_iterator at(svg.begin(), svg.end(), shape), end; at != end; ++at) {
    widths.push_back(std::stod((*at)[1]));
  }
  return widths;
}

TEST(FlameGraph, HasWidthsThatAreShares) {
  const cupool::cli::Report report = parsed(report_with_sites());
  const std::string svg = flame_graph(report.sites, cupool::cli::kSiteMeasures[0], "f");
  EXPECT_EQ(widths_of(svg, "0x30"), std::vector<double>{1100});
  EXPECT_EQ(widths_of(svg, "libwork\\.so\\+0x10"), std::vector<double>{825});
  EXPECT_EQ(widths_of(svg, "libwork\\.so\\+0x20"), std::vector<double>{275});
  EXPECT_TRUE(contains(svg, ">libwork.so+0x20</text>"));
  EXPECT_TRUE(contains(svg, "libwork.so+0x10: 5.72 MiB, 75.0 %")) << svg;
}

TEST(FlameGraph, MergesWhatIsTooNarrow) {
  json report = report_with_sites();
  for (int i = 0; i < 3000; ++i) {
    report["sites"]["frames"].push_back({{"module", 0}, {"offset", 1000 + i}});
    report["sites"]["sites"].push_back(site({3 + i, 2}, 2000, 0, 0));
  }
  const std::string svg = flame_graph(parsed(report).sites, cupool::cli::kSiteMeasures[0], "f");
  EXPECT_TRUE(contains(svg, "<title>3,000 more: 5.72 MiB")) << svg;
  EXPECT_LT(svg.size(), 4000u);
}

TEST(FlameGraph, IsInThePageAndEscaped) {
  const std::string hostile = "</title><script>x</script>";
  json report = report_with_sites();
  report["sites"]["modules"][0]["path"] = hostile;
  const std::string page = cupool::cli::html_page({parsed(report)});
  EXPECT_TRUE(contains(page, "Where memory comes from"));
  EXPECT_TRUE(contains(page, "Live at the peak"));
  EXPECT_FALSE(contains(page, "<script"));
  EXPECT_FALSE(contains(cupool::cli::html_page({parsed(example_report())}), "class=\"flame\""));
}

}  // namespace
}  // namespace cli
