// SPDX-License-Identifier: Apache-2.0
// `cupool report` of what is not the usual run under cupool: observed runs among others, memory of
// other kinds that was never freed, files that are named twice.
#include <filesystem>

#include "cli/page/html.h"
#include "cli/page/story.h"
#include "cli/page/text.h"
#include "command.h"
#include "example_report.h"

namespace cli {
namespace {

using cupool::cli::Report;
using cupool::cli::tell;
using nlohmann::json;
using preload::contains;
using preload::ProcessResult;
using preload::ScratchFolder;

bool one_says(const std::vector<std::string>& sentences, const std::string& part) {
  for (const std::string& sentence : sentences) {
    if (contains(sentence, part)) return true;
  }
  return false;
}

json observed_report() {
  json report = example_report();
  report["process"]["pid"] = 77;
  report["devices"][0]["counters"]["free_waits_total"] = 17;
  report["observe"] = {{"verdict", "Worth trying"},    {"sentences", json::array()},
                       {"assumptions", json::array()}, {"malloc_calls_total", 10},
                       {"malloc_ns_total", 9000000},   {"free_ns_total", 30000000},
                       {"live_peak_bytes", 50331648}};
  return report;
}

// What an observed run has not is no 0.
TEST(Story, LeavesObservedRunsOutOfTheSums) {
  const std::vector<Report> both = {parsed(example_report()), parsed(observed_report())};
  const auto story = tell(both);
  EXPECT_EQ(story.headline, tell({both[0]}).headline);
  EXPECT_TRUE(one_says(story.sentences, "Left out: 1 process that only observed"));
  EXPECT_FALSE(one_says(story.troubles, "waited for the GPU ()"));
  const std::string text = cupool::cli::story_text(both);
  EXPECT_TRUE(contains(text, "48.0 MiB")) << "its own peak" << text;
  const std::string observed =
      cupool::cli::story_text({parsed(observed_report()), parsed(observed_report())});
  EXPECT_FALSE(contains(observed, "stalls avoided")) << observed;
  EXPECT_TRUE(contains(observed, "  10     48.0 MiB\n")) << observed;
}

TEST(Story, TellsOfLeaksOfEveryKind) {
  json report = example_report();
  report["devices"][0]["gauges"].erase("leaked_blocks");
  report["devices"][0]["gauges"].erase("leaked_bytes");
  json site = {{"kind", "page_locked"}, {"device", -1}, {"blocks", 1}, {"bytes", 9 << 20}};
  site["frames"] = json::array();
  site["frames"].push_back({{"module", "/opt/app"}, {"offset", 16}, {"symbol", "forget"}});
  report["leaks"] = {{"sampled_one_in", 1}, {"sites", json::array()}};
  report["leaks"]["sites"].push_back(site);
  const std::vector<Report> reports = {parsed(report)};
  EXPECT_TRUE(one_says(tell(reports).troubles,
                       "1 block with 9.00 MiB of page-locked, managed or stream-ordered memory was "
                       "never freed: its call site is listed."));
  const std::string listed = cupool::cli::leaks_text(reports);
  EXPECT_TRUE(contains(listed, "9.00 MiB in 1 block of page-locked memory")) << listed;
  EXPECT_TRUE(contains(listed, "forget")) << listed;
  EXPECT_TRUE(contains(listed, "addr2line -Cfpe FILE OFFSET names a place")) << listed;
  const ScratchFolder folder;
  const ProcessResult result = cupool({"report", write_report(folder.path(), "a.json", report)});
  EXPECT_TRUE(contains(result.out, listed)) << result.out;
}

TEST(Outliers, HaveNothingAgainstAProcessWithoutLeaks) {
  std::vector<Report> reports;
  for (const int bytes : {1 << 20, 1 << 20, 0}) {
    json report = example_report();
    report["devices"][0]["gauges"]["leaked_bytes"]["current"] = bytes;
    reports.push_back(parsed(report));
  }
  const std::vector<std::string> named =
      cupool::cli::name_outliers(reports, cupool::cli::compare_processes(reports));
  EXPECT_TRUE(named.empty()) << named.front();
}

json report_of(int pid, const std::string& program, int allocations) {
  json report = example_report();
  report["process"]["pid"] = pid;
  report["process"]["program_path"] = program;
  report["devices"][0]["counters"]["malloc_calls_total"] = allocations;
  return report;
}

TEST(Processes, AreNamedWithTheirProgramsWhereTheyDiffer) {
  json other = report_of(2, "/opt/reduce", 10);
  other["cupool_version"] = "0.2.0";
  const std::vector<Report> mixed = {parsed(report_of(1, "/opt/map", 10)), parsed(other)};
  const std::string text = cupool::cli::story_text(mixed);
  EXPECT_TRUE(contains(text, "\n  process 1 on node1, map ")) << text;
  EXPECT_TRUE(contains(text, "\n  process 2 on node1, reduce ")) << text;
  EXPECT_TRUE(contains(text, "\nThese processes are of different programs (map, reduce).\n"))
      << text;
  EXPECT_TRUE(contains(text, "different versions of cupool (0.1.0, 0.2.0)")) << text;
  const std::string page = cupool::cli::html_page(mixed);
  EXPECT_TRUE(contains(page, "<th scope=\"row\">process 1 on node1, map</th>")) << page.size();
  const std::string alike = cupool::cli::story_text(
      {parsed(report_of(1, "/opt/map", 10)), parsed(report_of(2, "/home/map", 10))});
  EXPECT_TRUE(contains(alike, "\n  process 1 on node1 ")) << alike;
  EXPECT_FALSE(contains(alike, "different")) << alike;
}

// Of two values each is as far from the median as the other.
TEST(Outliers, AreNotAmongTwoProcesses) {
  const std::vector<Report> two = {parsed(report_of(1, "/opt/map", 10)),
                                   parsed(report_of(2, "/opt/map", 1000))};
  EXPECT_EQ(cupool::cli::find_outliers({10, 1000}), std::vector<bool>({false, false}));
  const std::string text = cupool::cli::story_text(two);
  EXPECT_TRUE(contains(text, "No outliers.")) << text;
  EXPECT_TRUE(contains(text, "with two there is none")) << text;
}

// The driver's peak is no measure of the pools'.
TEST(Outliers, OfObservedProcessesAreAmongThese) {
  std::vector<Report> reports;
  for (int pid = 1; pid <= 6; ++pid) {
    json report = pid <= 3 ? report_of(pid, "/opt/map", 1000) : observed_report();
    report["process"]["pid"] = pid;
    report["process"]["program_path"] = "/opt/map";
    if (pid > 3) report["observe"]["malloc_calls_total"] = pid == 6 ? 100 : 10;
    reports.push_back(parsed(report));
  }
  const std::vector<std::string> named =
      cupool::cli::name_outliers(reports, cupool::cli::compare_processes(reports));
  ASSERT_EQ(named.size(), 1u) << named.front();
  EXPECT_EQ(named[0], "process 6 on node1: allocations 100 (high)");
}

TEST(ReportCommand, CountsAFileOnce) {
  const ScratchFolder folder;
  const std::string file = write_report(folder.path(), "a.json", example_report());
  const std::string once = cupool({"report", folder.path()}).out;
  EXPECT_EQ(cupool({"report", folder.path(), folder.path() + "/.", file}).out, once);
}

// Files of `--stats-signal USR2`, named one by one: snapshots of one process are not processes.
TEST(ReportCommand, CountsAProcessOnce) {
  const ScratchFolder folder;
  std::vector<std::string> files;
  for (int number = 1; number <= 3; ++number) {
    json snapshot = example_report();
    snapshot["snapshot_number"] = number;
    snapshot["process"]["end_wall_ns"] = 2000000000 + std::min(number, 2);  // two at one moment
    snapshot["devices"][0]["counters"]["malloc_calls_total"] = 100 * number;
    files.push_back(write_report(folder.path(), std::to_string(number) + ".json", snapshot));
  }
  const ProcessResult snapshots = cupool({"report", files[0], files[1], files[2]});
  EXPECT_EQ(snapshots.out, cupool({"report", files[2]}).out) << "the latest";
  EXPECT_TRUE(contains(snapshots.err, "cupool: left out 2 snapshots: a later report of the "))
      << snapshots.err;
  const std::string at_exit = write_report(folder.path(), "exit.json", example_report());
  EXPECT_EQ(cupool({"report", files[2], at_exit}).out, cupool({"report", at_exit}).out);
  EXPECT_TRUE(contains(cupool({"tune", files[0], files[2]}).out, "from 1 report."));
}

TEST(ReportCommand, CountsACopyOfAReportOnce) {
  const ScratchFolder folder;
  const std::string file = write_report(folder.path(), "a.json", example_report());
  const std::string copy = write_report(folder.path(), "b.json", example_report());
  const ProcessResult both = cupool({"report", file, copy});
  EXPECT_EQ(both.out, cupool({"report", file}).out);
  EXPECT_TRUE(contains(both.err, "left out 1 copy of a report: " + copy + " is that of " + file))
      << both.err;
  json of_other_rank = example_report();
  of_other_rank["process"]["rank"] = "1";  // in a container of its own
  const std::string other = write_report(folder.path(), "c.json", of_other_rank);
  EXPECT_TRUE(contains(cupool({"report", file, other}).out, "rank 1 on node1"));
}

TEST(ReportCommand, OverwritesNoProgram) {
  const ScratchFolder folder;
  const std::string file = write_report(folder.path(), "a.json", example_report());
  const std::string program = folder.path() + "/program";
  std::filesystem::copy_file("/bin/true", program);
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"report", "--html", program, file}, {"tune", "-o", program, file}}) {
    const ProcessResult result = cupool(words);
    EXPECT_EQ(result.exit_code, 2) << result.describe();
    EXPECT_TRUE(contains(result.err, program + " is a program and would be overwritten"))
        << result.err;
  }
  EXPECT_TRUE(preload::read_file(program) == preload::read_file("/bin/true"));
}

}  // namespace
}  // namespace cli
