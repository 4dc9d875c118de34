// SPDX-License-Identifier: Apache-2.0
// `cupool diff`: names what changed by more than noise, and nothing else; sums over processes.
#include "cli/page/difference.h"
#include "command.h"
#include "example_report.h"

namespace cli {
namespace {

using cupool::cli::Change;
using cupool::cli::Difference;
using cupool::cli::difference_of;
using nlohmann::json;
using preload::contains;
using preload::ProcessResult;
using preload::ScratchFolder;

Difference between(const json& before, const json& after) {
  return difference_of({parsed(before)}, {parsed(after)});
}

// The change of the figure `name`, or an empty one.
Change find(const Difference& difference, const std::string& name) {
  for (const auto& group : difference.groups) {
    for (const Change& change : group.changes) {
      if (change.name == name) return change;
    }
  }
  return {};
}

TEST(Diff, OfEqualRunsIsEmpty) {
  const Difference difference = between(example_report(), example_report());
  EXPECT_EQ(difference.headline, "Nothing changed by more than noise");
  EXPECT_TRUE(difference.groups.empty());
}

TEST(Diff, LeavesOutNoise) {
  json after = example_report();
  json& device = after["devices"][0];
  device["counters"]["malloc_calls_total"] = 1009;               // 9, less than 10 calls
  device["counters"]["free_calls_total"] = 1000;                 // 10 calls, but 1 %
  device["times"]["malloc"]["sum_ns"] = 2900000;                 // 0.9 ms
  device["gauges"]["held_bytes"]["peak"] = 104857600 + 1000000;  // less than 1 MiB
  after["process"]["end_wall_ns"] = 3000000000 + 150000000;      // 7 %
  EXPECT_TRUE(between(example_report(), after).groups.empty());
  device["counters"]["malloc_calls_total"] = 1030;
  device["times"]["malloc"]["sum_ns"] = 3100000;
  device["gauges"]["held_bytes"]["peak"] = 209715200;
  const Difference difference = between(example_report(), after);
  EXPECT_EQ(find(difference, "allocations").change, "+3.0 %");
  EXPECT_EQ(find(difference, "in malloc").after, "3.10 ms");
  EXPECT_EQ(find(difference, "held by cupool").change, "2.0 times");
  EXPECT_EQ(difference.headline,
            "More time in malloc and free: 3.10 ms instead of 2.00 ms; more memory at the peak: "
            "200 MiB instead of 100 MiB");
}

TEST(Diff, NamesModesSettingsReasonsFailuresAndLeaks) {
  json after = example_report();
  after["free_mode"] = "sync";
  after["settings"].push_back({{"name", "CUPOOL_FREE_MODE"},
                               {"value", "sync"},
                               {"origin", "environment"},
                               {"is_default", false}});
  json& device = after["devices"][0];
  device["counters"]["free_waits_sync_total"] = 50;
  device["counters"]["malloc_failed_total"] = 1;
  device["gauges"]["leaked_blocks"]["current"] = 11;
  after["leaks"] = {{"sites",
                     {{{"device", 0},
                       {"blocks", 1},
                       {"bytes", 512},
                       {"frames", {{{"module", "/a"}, {"offset", 1}, {"symbol", "make"}}}}}}}};
  const Difference difference = between(example_report(), after);
  EXPECT_EQ(find(difference, "free mode").before, "auto");
  EXPECT_EQ(find(difference, "free mode").after, "sync");
  EXPECT_EQ(find(difference, "CUPOOL_FREE_MODE").before, "-");
  EXPECT_EQ(find(difference, "by CUPOOL_FREE_MODE=sync").after, "50");
  EXPECT_EQ(find(difference, "failed").after, "1");
  EXPECT_EQ(find(difference, "leaked blocks").after, "11");
  EXPECT_EQ(find(difference, "make (a+0x1)").after, "512 B in 1");
}

// An observed run has figures of the driver alone.
TEST(Diff, ComparesAnObservedRunByWhatItHas) {
  json observed = example_report();
  observed["devices"][0]["gauges"]["held_bytes"]["peak"] = 0;
  observed["devices"][0]["counters"]["served_thread_cache_total"] = 0;
  observed["observe"] = {{"verdict", "x"},
                         {"malloc_calls_total", 500},
                         {"malloc_ns_total", 9000000},
                         {"free_ns_total", 30000000},
                         {"live_peak_bytes", 50331648}};
  const Difference difference = between(observed, example_report());
  EXPECT_TRUE(contains(difference.headline, "instead of 39.0 ms; more memory at the peak: "))
      << difference.headline;
  EXPECT_TRUE(contains(difference.headline, "instead of 48.0 MiB")) << difference.headline;
  EXPECT_EQ(find(difference, "allocations").before, "500");
  EXPECT_EQ(find(difference, "held by cupool").after, "") << "no figure of it";
  ASSERT_FALSE(difference.notes.empty());
  EXPECT_TRUE(contains(difference.notes[0], "The first run was observed")) << difference.notes[0];
}

// Beside other times and peaks that did.
TEST(Diff, SaysWhatDidNotChangeByItsName) {
  json after = example_report();
  json& device = after["devices"][0];
  device["gauges"]["application_bytes"] = {{"current", 0}, {"peak", 1 << 20}};
  const Difference difference = between(example_report(), after);
  EXPECT_TRUE(contains(difference.headline,
                       "changed, but not the time in malloc and free together, nor the memory at "
                       "the peak"))
      << difference.headline;
}

// The peak of `cupool report`, which the sample of the highest use may miss.
TEST(Diff, HasThePeakOfTheReport) {
  json before = example_report();
  before["devices"][0]["peak_use"] = {{"taken_bytes", 33554432}};
  json after = before;
  after["devices"][0]["peak_use"]["taken_bytes"] = 67108864;
  EXPECT_EQ(between(before, after).headline, "Nothing changed by more than noise");
  after["devices"][0]["pool"]["reserved_high_bytes"] = 167772160;
  after["devices"][0]["gauges"]["device_bytes"]["peak"] = 104857600;
  const Difference difference = between(before, after);
  EXPECT_EQ(difference.headline, "More memory at the peak: 160 MiB instead of 100 MiB");
  EXPECT_EQ(find(difference, "of the device, in all").after, "160 MiB");
  EXPECT_EQ(find(difference, "the program's own").before, "50.0 MiB");
  EXPECT_EQ(find(difference, "the program's own").after, "100 MiB");
}

TEST(Diff, SumsOverProcesses) {
  const auto report = parsed(example_report());
  const Difference difference = difference_of({report, report}, {report});
  EXPECT_EQ(find(difference, "allocations").before, "2,000");
  EXPECT_EQ(find(difference, "allocations").after, "1,000");
  ASSERT_FALSE(difference.notes.empty());
  EXPECT_TRUE(contains(difference.notes[0], "2 reports, the second 1"));
}

TEST(Diff, HoldsWithExtremeFiguresAndBoundsWhatItLists) {
  json after = example_report();
  after["devices"][0]["name"] = std::string(100000, 'x');
  for (json& counter : after["devices"][0]["counters"]) counter = UINT64_MAX;
  for (int i = 0; i < 1000; ++i) {
    after["settings"].push_back({{"name", "CUPOOL_" + std::to_string(i)},
                                 {"value", std::string(5000, 'y')},
                                 {"origin", "environment"},
                                 {"is_default", false}});
  }
  const std::string text = cupool::cli::difference_text(between(example_report(), after));
  EXPECT_LT(text.size(), 65536u);
  EXPECT_TRUE(contains(text, "and 937 more")) << text.substr(0, 300);
  const std::string page =
      cupool::cli::difference_page({parsed(example_report())}, {parsed(after)});
  EXPECT_FALSE(contains(page, "nan"));
}

TEST(DiffCommand, PrintsAndWritesWithoutControlSequencesOfTheReports) {
  const ScratchFolder folder;
  json after = example_report();
  after["free_mode"] = "\x1b[31m<script>x</script>";
  const std::string first = write_report(folder.path(), "a.json", example_report());
  const std::string second = write_report(folder.path(), "b.json", after);
  const std::string page = folder.path() + "/page.html";
  const ProcessResult result = cupool({"diff", "--text", "--html", page, first, second});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_FALSE(contains(result.out, "\x1b"));
  EXPECT_TRUE(contains(result.out, "free mode"));
  const std::string html = preload::read_file(page);
  EXPECT_FALSE(contains(html, "<script"));
  EXPECT_TRUE(contains(html, "&lt;script&gt;"));
}

TEST(DiffCommand, ReadsDirectoriesAndRefusesWhatIsNoReport) {
  const ScratchFolder before;
  const ScratchFolder after;
  write_report(before.path(), "a.json", example_report());
  write_report(after.path(), "a.json", example_report());
  EXPECT_EQ(cupool({"diff", before.path(), after.path()}).exit_code, 0);
  EXPECT_EQ(cupool({"diff", before.path(), after.path() + "/none.json"}).exit_code, 2);
  const std::string newer = write_report(after.path(), "b.json", {{"schema_version", 99}});
  EXPECT_EQ(cupool({"diff", before.path(), newer}).exit_code, 2);
  EXPECT_EQ(cupool({"diff", before.path()}).exit_code, 2);
}

}  // namespace
}  // namespace cli
