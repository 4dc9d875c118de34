// SPDX-License-Identifier: Apache-2.0
// One process has one peak: in its report at exit, in `cupool report`, its table and its page.
#include "../unit/fixed_snapshot.h"
#include "cli/page/html.h"
#include "cli/page/story.h"
#include "cli/page/text.h"
#include "command.h"
#include "example_report.h"
#include "report/json.h"
#include "report/verdict.h"

namespace cli {
namespace {

using cupool::cli::Report;
using cupool::stats::DeviceSnapshot;
using cupool::stats::Gauge;
using cupool::stats::Snapshot;
using preload::contains;
using preload::ProcessResult;
using preload::ScratchFolder;

constexpr std::int64_t kMib = 1 << 20;

Report report_of(const Snapshot& snapshot) {
  return cupool::cli::parse_report(cupool::report::json_report(snapshot), "run.json");
}

// A device without pools, whose allocations the driver served.
DeviceSnapshot device_of_the_driver(int ordinal) {
  DeviceSnapshot device = cupool::test::fixed_device();
  device.ordinal = ordinal;
  device.pool = {};
  for (const Gauge gauge : {Gauge::application_bytes, Gauge::rounding_bytes, Gauge::retired_bytes,
                            Gauge::cached_bytes, Gauge::held_bytes}) {
    device[gauge] = {0, 0};
  }
  device[Gauge::passthrough_bytes] = {16 * kMib, 64 * kMib};
  device[Gauge::device_bytes] = {16 * kMib, 64 * kMib};
  return device;
}

// Runs whose peak is that of the pool, of the program itself, and of both.
std::vector<Snapshot> runs() {
  std::vector<Snapshot> runs(5, cupool::test::fixed_snapshot());
  runs[1].devices = {device_of_the_driver(0)};
  runs[2].devices[0][Gauge::passthrough_bytes] = {512 * kMib, 512 * kMib};
  runs[3].devices = {device_of_the_driver(0), cupool::test::fixed_device()};
  runs[3].devices[1].ordinal = 1;
  runs[4].devices = {device_of_the_driver(0), device_of_the_driver(1)};
  return runs;
}

TEST(PeakMemory, IsTheSameInTheReportAtExitAndInTheCommand) {
  for (const Snapshot& snapshot : runs()) {
    const cupool::report::Verdict at_exit = cupool::report::verdict_of(snapshot);
    SCOPED_TRACE(at_exit.memory);
    EXPECT_EQ(cupool::cli::tell({report_of(snapshot)}).verdict.memory, at_exit.memory);
  }
}

TEST(PeakMemory, CountsWhatTheDriverServed) {
  const std::vector<Report> reports = {report_of(runs()[1]), report_of(runs()[2])};
  EXPECT_EQ(cupool::cli::peak_memory(reports[0].devices[0]), 64u * kMib) << "the program's own";
  EXPECT_EQ(cupool::cli::peak_memory(reports[1].devices[0]), (3090u + 512u) * kMib)
      << "the pool, and what the driver still served beside it";
  const std::string text = cupool::cli::story_text(reports);
  EXPECT_TRUE(contains(text, "64.0 MiB")) << text;
  const std::string alone = cupool::cli::story_text({reports[0]});
  EXPECT_FALSE(contains(alone, "none held by cupool's pools")) << alone;
  EXPECT_TRUE(contains(alone, "The process took at most 64.0 MiB")) << alone;
}

// The lines of the verdict's memory in a text report.
std::string memory_lines(const std::string& text) {
  std::string lines;
  bool is_memory = false;
  for (const std::string& line : preload::lines_of(text)) {
    const std::size_t first = std::min(line.find_first_not_of(' '), line.size());
    if (line.compare(first, 8, "Memory  ") == 0) is_memory = true;
    if (line.compare(first, 8, "Next    ") == 0) break;
    if (is_memory) lines += line.substr(first) + " ";
  }
  return lines;
}

TEST(PeakMemory, OfARunIsTheSameInBothTexts) {
  // Served by the driver, which has it before pools start, and by pools.
  for (const char* loop : {"loop=1", "loop=100"}) {
    SCOPED_TRACE(loop);
    const ScratchFolder folder;
    const std::string file = folder.path() + "/run.json";
    const ProcessResult run = cupool({"run", "--stats", "text,json", "--stats-file", file, "--",
                                      preload::probe_path("probe_words"), loop, "keep_device"});
    ASSERT_EQ(run.exit_code, 0) << run.describe();
    const std::string at_exit = memory_lines(preload::read_file(folder.path() + "/run.txt"));
    EXPECT_TRUE(contains(at_exit, "Memory  peak ")) << at_exit;
    EXPECT_EQ(memory_lines(cupool({"report", file}).out), at_exit);
  }
}

}  // namespace
}  // namespace cli
