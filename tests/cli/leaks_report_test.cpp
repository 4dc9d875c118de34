// SPDX-License-Identifier: Apache-2.0
// `cupool report` of memory that was never freed: functions are named as those of call sites are.
#include <algorithm>
#include <regex>

#include "cli/page/text.h"
#include "command.h"
#include "example_report.h"

namespace cli {
namespace {

using nlohmann::json;
using preload::contains;
using preload::ScratchFolder;

bool finds(const std::string& text, const std::string& pattern) {
  return std::regex_search(text, std::regex(pattern));
}

// main() is not exported: its name is in the program's file alone.
TEST(LeaksReport, NamesFunctionsThatAreNotExported) {
  const ScratchFolder folder;
  const preload::PreloadedRun run = preload::run_preloaded("probe_leaks", {{"CUPOOL_LEAKS", "1"}});
  json report = run.reports.at(0);
  const std::string file = write_report(folder.path(), "a.json", report);
  const std::string text = cupool({"report", file}).out;
  const std::string place = R"( \(probe_leaks\+0x[0-9a-f]+\))";
  EXPECT_TRUE(finds(text, "leak_large" + place + ", main" + place)) << text;
  const std::string unchecked =
      text.substr(std::min(text.find("Not checked for names"), text.size()));
  EXPECT_FALSE(contains(unchecked, "probe_leaks")) << text;
  report["process"]["pid"] = 43;
  const std::string other = write_report(folder.path(), "b.json", report);
  const std::string both = cupool({"report", file, other}).out;
  EXPECT_TRUE(finds(both, "30.0 MiB in 6 blocks\n    leak_large" + place + ", main" + place))
      << both;
}

// A file that may not be what ran names nothing.
TEST(LeaksReport, ChecksNoFileOfAnotherBuild) {
  const ScratchFolder folder;
  const preload::PreloadedRun run = preload::run_preloaded("probe_leaks", {{"CUPOOL_LEAKS", "1"}});
  json report = run.reports.at(0);
  const std::string program = report["leaks"]["modules"][0]["path"];
  const std::string place = R"(leak_large \(probe_leaks\+0x[0-9a-f]+\), probe_leaks\+0x)";
  for (json& module : report["leaks"]["modules"]) module["build_id"] = std::string(40, '0');
  const std::string other =
      cupool({"report", write_report(folder.path(), "other.json", report)}).out;
  EXPECT_TRUE(finds(other, place)) << other;
  for (json& module : report["leaks"]["modules"]) module["build_id"] = nullptr;
  const std::string none = cupool({"report", write_report(folder.path(), "none.json", report)}).out;
  EXPECT_TRUE(finds(none, place)) << none;
  EXPECT_TRUE(contains(none, "Not checked for names, since the report has no build id of it: "))
      << none;
  EXPECT_TRUE(contains(none, program)) << none;
}

TEST(LeaksReport, RefusesFramesOfNoModule) {
  json report = example_report();
  report["leaks"] = {{"modules", json::array()},
                     {"sites",
                      {{{"kind", "device"},
                        {"blocks", 1},
                        {"bytes", 512},
                        {"frames", {{{"module_index", 0}, {"offset", 1}}}}}}}};
  EXPECT_THROW(parsed(report), cupool::cli::ReportError);
}

}  // namespace
}  // namespace cli
