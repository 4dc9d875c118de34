// SPDX-License-Identifier: Apache-2.0
// The text report, held against a page that a person has read (golden/), and its rare lines.
#include "report/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <fstream>

#include "fixed_snapshot.h"
#include "report/derived.h"
#include "report/verdict.h"
#include "temporary_folder.h"

namespace cupool::report {
namespace {

using stats::Counter;
using stats::Gauge;
using test::fixed_snapshot;
using testing::HasSubstr;
using testing::Not;

class TextReport : public testing::Test {
 protected:
  void SetUp() override { ::tzset(); }
  test::ScopedVariable time_zone_{"TZ", "UTC"};
};

// CUPOOL_TEST_WRITE_GOLDEN=1 writes the page anew; then read it before committing.
TEST_F(TextReport, IsThePageThatAPersonHasRead) {
  const auto is_read = [](const char* name, const std::string& report) {
    const std::string path = std::string(CUPOOL_TEST_GOLDEN_FOLDER "/") + name;
    if (::getenv("CUPOOL_TEST_WRITE_GOLDEN") != nullptr) std::ofstream(path) << report;
    EXPECT_EQ(report, test::content_of(path));
  };
  is_read("report_one_device.txt", text_report(fixed_snapshot()));
  is_read("summary_one_device.txt", text_summary(fixed_snapshot()));
}

void expect_to_fit(const std::string& report, std::ptrdiff_t lines) {
  EXPECT_LE(std::count(report.begin(), report.end(), '\n'), lines) << report;
  std::size_t start = 0;
  for (std::size_t end; (end = report.find('\n', start)) != std::string::npos; start = end + 1) {
    EXPECT_LE(end - start, 110u) << report.substr(start, end - start);
    EXPECT_FALSE(end > start && report[end - 1] == ' ') << "blanks at the end of a line";
  }
}

TEST_F(TextReport, FitsAScreen) {
  expect_to_fit(text_report(fixed_snapshot()), 60);
}

TEST_F(TextReport, IsShortUnlessMoreIsAskedFor) {
  expect_to_fit(text_summary(fixed_snapshot()), 22);
  stats::Snapshot calm = fixed_snapshot();
  for (Counter trouble : {Counter::free_waits_total, Counter::free_waits_host_copy_total,
                          Counter::free_waits_pending_limit_total, Counter::oom_rescues_total}) {
    calm.devices[0][trouble] = 0;
  }
  calm.devices[0][Gauge::leaked_blocks].current = 0;
  const std::string report = text_summary(calm);
  expect_to_fit(report, 15);
  EXPECT_THAT(report, Not(HasSubstr("fence")));
  EXPECT_THAT(report, Not(HasSubstr("epoch")));
  EXPECT_THAT(report, Not(HasSubstr(" 0.0 %")));
  EXPECT_THAT(report, Not(HasSubstr("- ")));
}

// A reader in a hurry reads three lines.
TEST_F(TextReport, BeginsWithTheVerdict) {
  for (const std::string& report :
       {text_summary(fixed_snapshot()), text_report(fixed_snapshot())}) {
    const std::size_t time =
        report.find("\n  Time    at least 700,000 stalls avoided in 1,000,010 frees");
    const std::size_t memory = report.find("\n  Memory  peak 3.02 GiB with cupool, the program's ");
    const std::size_t next = report.find("\n  Next    ");
    EXPECT_LT(time, memory) << report;
    EXPECT_LT(memory, next) << report;
    EXPECT_EQ(report.find("\n"), time) << "one line of who reports";
  }
}

// What a program saves by page-locked memory alone is something saved.
TEST_F(TextReport, TheVerdictCountsPageLockedMemory) {
  RunFigures run;
  run[Counter::malloc_calls_total] = run[Counter::served_passthrough_total] = 1;
  EXPECT_THAT(verdict_of(run).time, testing::StartsWith("nothing saved"));
  EXPECT_THAT(verdict_of(run).next, HasSubstr("nothing to gain"));
  run[Counter::host_malloc_calls_total] = 9;
  run[Counter::host_served_total] = 7;
  EXPECT_THAT(
      verdict_of(run).time,
      testing::StartsWith("7 of 9 page-locked allocations from the cache; device memory: "));
  EXPECT_EQ(verdict_of(run).next, "nothing to do");
}

TEST_F(TextReport, TheVerdictOfPageLockedMemoryAlone) {
  stats::Snapshot snapshot = fixed_snapshot();
  stats::DeviceSnapshot device;
  device.ordinal = 0;
  device[Counter::host_malloc_calls_total] = 9;
  device[Counter::host_served_total] = 7;
  device[Gauge::host_held_bytes] = {1 << 20, 4 << 20};
  device[Gauge::host_cached_bytes] = {1 << 20, 3 << 20};
  snapshot.devices = {device};
  const Verdict verdict = verdict_of(snapshot);
  EXPECT_EQ(verdict.time, "7 of 9 page-locked allocations from the cache; no cudaMalloc to serve");
  EXPECT_EQ(verdict.memory,
            "none held by cupool's pools; page-locked: peak 4.00 MiB with cupool, 1.00 MiB idle at "
            "exit");
  EXPECT_EQ(verdict.next, "nothing to do; cupool compare ./program measures the gain");
  EXPECT_TRUE(verdict.findings.empty());
  EXPECT_THAT(text_summary(snapshot), HasSubstr("  At exit      1.00 MiB cached host memory\n"));
  EXPECT_THAT(text_line(snapshot), HasSubstr(": 7 of 9 page-locked allocations from the cache; no "
                                             "cudaMalloc to serve; the whole with "));
  snapshot.devices[0][Counter::host_free_waits_total] = 1;
  snapshot.devices[0][Counter::host_free_wait_ns_total] = 2'000'000;
  ASSERT_EQ(verdict_of(snapshot).findings.size(), 1u);
  EXPECT_EQ(verdict_of(snapshot).findings[0].what,
            "1 free of page-locked memory waited for the GPU, 2.00 ms in all");
}

TEST_F(TextReport, TheVerdictNamesStreamOrderedAllocations) {
  RunFigures run;
  run[Counter::own_async_malloc_calls_total] = 1000;
  EXPECT_THAT(verdict_of(run).time, testing::StartsWith("1,000 cudaMallocAsync by the driver, "));
  EXPECT_THAT(verdict_of(run).time, Not(HasSubstr("nothing saved")));
  EXPECT_EQ(verdict_of(run).memory, "none held by cupool's pools");
  EXPECT_THAT(verdict_of(run).next, HasSubstr("cupool compare"));
  run[Counter::malloc_calls_total] = run[Counter::served_passthrough_total] = 1;
  EXPECT_THAT(verdict_of(run).time, HasSubstr("; 1,000 cudaMallocAsync by the driver, "));
  EXPECT_EQ(verdict_of(run).next, "nothing to do");
  run[Counter::malloc_calls_total] = 0;
  run.note_setting("CUPOOL_ASYNC", "off");
  EXPECT_EQ(verdict_of(run).time,
            "nothing saved: 1,000 cudaMallocAsync by the driver, as without cupool "
            "(CUPOOL_ASYNC=off)");
  EXPECT_THAT(verdict_of(run).next, testing::StartsWith("CUPOOL_ASYNC=threshold"));
}

// "Nothing to do" never stands above a finding that asks for something.
TEST_F(TextReport, TheVerdictDoesNotIgnoreWhatWasFound) {
  RunFigures run;
  run.at_exit = true;
  run[Counter::malloc_calls_total] = run[Counter::served_thread_cache_total] = 5000;
  run[Counter::free_calls_total] = run[Counter::frees_unwaited_busy_total] = 5000;
  EXPECT_EQ(verdict_of(run).next, "nothing to do; cupool compare ./program measures the gain");
  const RunFigures good = run;

  run[Counter::free_waits_total] = run[Counter::free_waits_host_copy_total] = 1;
  EXPECT_EQ(verdict_of(run).next, "cupool compare ./program measures the gain") << "too rare";
  run.rdma = true;
  EXPECT_THAT(verdict_of(run).next, testing::StartsWith("nothing to do; "))
      << "the finding says so itself";

  run = good;
  run.leaked_blocks = 2;
  EXPECT_EQ(verdict_of(run).next,
            "cupool compare ./program measures the gain; cupool run --leaks 1 ./program lists what "
            "was never freed");
  run.lists_leaks = true;
  EXPECT_THAT(verdict_of(run).next, testing::EndsWith("what was never freed are listed"));
  run.at_exit = false;
  EXPECT_THAT(verdict_of(run).next, testing::StartsWith("nothing to do; ")) << "it is just live";

  run = good;
  run[Counter::free_rejected_total] = 1;
  EXPECT_THAT(verdict_of(run).next, HasSubstr("CUPOOL_TRACE=run.csv"));
  run[Counter::malloc_failed_total] = 1;
  EXPECT_THAT(verdict_of(run).next, HasSubstr("without cupool too"));

  run = {};
  run.at_exit = true;
  run.other_leaked_blocks = 1;
  EXPECT_EQ(verdict_of(run).next, "cupool run --leaks 1 ./program lists what was never freed");
  run[Counter::malloc_calls_total] = run[Counter::served_passthrough_total] = 1;
  EXPECT_EQ(verdict_of(run).next, "cupool run --leaks 1 ./program lists what was never freed");
}

TEST_F(TextReport, WhatFailedWasServedByNobody) {
  RunFigures run;
  run[Counter::malloc_calls_total] = run[Counter::malloc_failed_total] = 1;
  EXPECT_EQ(verdict_of(run).time, "nothing saved: the only allocation failed");
  EXPECT_THAT(verdict_of(run).next, HasSubstr("cupool compare"));
  EXPECT_THAT(verdict_of(run).findings.at(0).cure,
              AllOf(HasSubstr("cupool compare"), Not(HasSubstr("would have failed"))));
  run[Counter::malloc_calls_total] = run[Counter::malloc_failed_total] = 3;
  EXPECT_EQ(verdict_of(run).time, "nothing saved: all 3 allocations failed");
  run[Counter::served_passthrough_total] = 1;
  run[Counter::malloc_calls_total] = 4;
  EXPECT_THAT(verdict_of(run).time,
              testing::StartsWith("nothing saved: the driver served the only allocation, since"));
}

// Whether the pools had started, no report tells.
TEST_F(TextReport, TheVerdictClaimsNoReasonThatItCannotKnow) {
  RunFigures run;
  run[Counter::malloc_calls_total] = run[Counter::served_passthrough_total] = 50;
  run[Counter::free_calls_total] = 50;
  EXPECT_THAT(verdict_of(run).time,
              testing::StartsWith("nothing saved: the driver served all 50 allocations, since "));
  EXPECT_THAT(verdict_of(run).time, HasSubstr("libraries"));
  EXPECT_THAT(verdict_of(run).next, Not(HasSubstr("CUPOOL_MAX_BLOCK")));
  run.note_setting("CUPOOL_MAX_BLOCK", "0");
  EXPECT_THAT(verdict_of(run).time, HasSubstr("larger than CUPOOL_MAX_BLOCK=0"));
  EXPECT_THAT(verdict_of(run).next, testing::StartsWith("CUPOOL_MAX_BLOCK=100%"));
}

// In `ordered` no stall is counted, so their absence says nothing.
TEST_F(TextReport, AdvisesToObserveOnlyWhereStallsAreCounted) {
  RunFigures run;
  run[Counter::malloc_calls_total] = run[Counter::served_thread_cache_total] = 50;
  run[Counter::free_calls_total] = 50;
  EXPECT_THAT(verdict_of(run).next, HasSubstr("cupool observe"));
  run.counts_stalls = false;
  EXPECT_THAT(verdict_of(run).next, Not(HasSubstr("cupool observe")));
  run.counts_stalls = true;
  run[Counter::malloc_calls_total] = run[Counter::served_thread_cache_total] = 1000;
  EXPECT_THAT(verdict_of(run).next, HasSubstr("cupool compare")) << "a thousand calls replaced";
}

// Less in cupool's caches would leave the memory in the driver's pool, which keeps it as well.
TEST_F(TextReport, AgainstIdleMemoryItAdvisesASoonerDecay) {
  RunFigures run;
  run[Counter::malloc_calls_total] = run[Counter::served_thread_cache_total] = 50;
  run.device_bytes = std::uint64_t{10} << 30;
  run.idle_bytes = std::uint64_t{1} << 30;
  EXPECT_EQ(verdict_of(run).next, "CUPOOL_DECAY_MS=500 gives idle memory back sooner");
  run.note_setting("CUPOOL_DECAY_MS", "0");
  EXPECT_EQ(verdict_of(run).next, "CUPOOL_DECAY_MS=500 gives idle memory back sooner");
  run.note_setting("CUPOOL_DECAY_MS", "10s");
  EXPECT_EQ(verdict_of(run).next,
            "a shorter CUPOOL_DECAY_MS than 10s gives idle memory back sooner");
  run[Counter::oom_rescues_total] = 1;
  EXPECT_THAT(verdict_of(run).next, AllOf(HasSubstr("DECAY_MS"), HasSubstr("device was full")));
  EXPECT_THAT(verdict_of(run).findings.at(0).cure, HasSubstr("DECAY_MS"));
  run[Counter::oom_rescues_total] = 0;
  --run.idle_bytes;
  EXPECT_THAT(verdict_of(run).next, Not(HasSubstr("DECAY_MS")))
      << "less than a tenth of the device";
}

// The settings of a snapshot, as of a report that is read from its file.
TEST_F(TextReport, TheVerdictKnowsTheSettings) {
  stats::Snapshot snapshot = fixed_snapshot();
  EXPECT_EQ(run_figures_of(snapshot).max_block, "");
  snapshot.process.settings.push_back({"CUPOOL_MAX_BLOCK", "64K", "environment", false});
  EXPECT_EQ(run_figures_of(snapshot).max_block, "64K");
}

TEST_F(TextReport, LongLinesAreWrappedBehindTheirLabel) {
  EXPECT_EQ(wrapped("ab ", "one two three", 9), "ab one\n   two\n   three\n");
  EXPECT_EQ(wrapped("ab ", "one two three", 10), "ab one two\n   three\n");
  EXPECT_EQ(wrapped("ab ", "muchtoolongaword x", 9), "ab muchtoolongaword\n   x\n");
}

TEST_F(TextReport, SaysSoWhenTheSumDoesNotAddUp) {
  stats::Snapshot snapshot = fixed_snapshot();
  EXPECT_THAT(text_report(snapshot), Not(HasSubstr("off by")));
  snapshot.devices[0][Gauge::held_bytes].current += 512;
  EXPECT_EQ(unaccounted_bytes(snapshot.devices[0]), 512);
  EXPECT_THAT(text_report(snapshot), HasSubstr("off by 512 bytes"));
  snapshot.devices[0][Gauge::held_bytes].current -= 1024;
  EXPECT_THAT(text_report(snapshot), HasSubstr("off by -512 bytes"));
}

TEST_F(TextReport, OfTheRunningProcessSaysSo) {
  stats::Snapshot snapshot = fixed_snapshot();
  EXPECT_THAT(text_report(snapshot), HasSubstr("at exit"));
  snapshot.number = 3;
  const std::string report = text_report(snapshot);
  EXPECT_THAT(report, HasSubstr("snapshot 3 of the running process"));
  EXPECT_THAT(report, HasSubstr("live now"));
  EXPECT_THAT(report, Not(HasSubstr("exit")));
}

TEST_F(TextReport, PlainMemoryIsNoPartOfThePool) {
  stats::Snapshot snapshot = fixed_snapshot();
  stats::DeviceSnapshot& device = snapshot.devices[0];
  EXPECT_THAT(text_report(snapshot), Not(HasSubstr("plain")));
  const std::int64_t slack = device.driver_slack_bytes();
  device[Gauge::held_bytes].current += 80'000'000'000;
  device[Gauge::cached_bytes].current += 80'000'000'000;
  device[Gauge::plain_bytes] = {80'000'000'000, 80'000'000'000};
  EXPECT_EQ(device.driver_slack_bytes(), slack);
  EXPECT_THAT(text_report(snapshot),
              HasSubstr("    - plain (cuMemAlloc, in no pool)      80,000,000,000     74.5 GiB"));
}

// The column is of one moment: each sum stands below its parts, plain memory is no part of the
// pool.
TEST_F(TextReport, TheColumnOfThePeakUseAddsUp) {
  stats::Snapshot snapshot = fixed_snapshot();
  stats::PeakUse& use = snapshot.devices[0].peak_use;
  const auto last_cell = [&](const char* label) {
    const std::string report = text_report(snapshot);
    const std::size_t begin = std::min(report.find(label), report.size());
    const std::string row = report.substr(begin, report.find('\n', begin) - begin);
    const std::size_t cell = row.rfind("  ");
    return cell == std::string::npos ? row : row.substr(row.find_first_not_of(' ', cell));
  };
  EXPECT_EQ(last_cell("  Memory   "), "at peak use");
  EXPECT_EQ(last_cell("  application"), "2.73 GiB");
  EXPECT_EQ(last_cell("+ rounding"), "10.0 MiB");
  EXPECT_EQ(last_cell("+ freed"), "190 MiB");
  EXPECT_EQ(last_cell("+ reserved"), "72.0 MiB");
  EXPECT_EQ(last_cell("= held"), "3.00 GiB");
  EXPECT_EQ(last_cell("+ driver slack"), "16.0 MiB");
  EXPECT_EQ(last_cell("= pool reserved"), "3.02 GiB");
  snapshot.devices[0][Gauge::plain_bytes].peak = 1 << 30;
  use.plain_bytes = 1 << 30;
  EXPECT_EQ(last_cell("- plain"), "1.00 GiB");
  EXPECT_EQ(last_cell("= pool reserved"), "2.02 GiB");
  use = {};
  EXPECT_THAT(text_report(snapshot), Not(HasSubstr("peak use")));
}

TEST_F(TextReport, WithoutADriverPoolShowsNone) {
  stats::Snapshot snapshot = fixed_snapshot();
  snapshot.devices[0].pool = {};
  const std::string report = text_report(snapshot);
  EXPECT_THAT(report, Not(HasSubstr("slack")));
  EXPECT_THAT(report, Not(HasSubstr("pool reserved")));
  EXPECT_THAT(report, Not(HasSubstr("Suggested")));
}

TEST_F(TextReport, RareLinesAppearWhenThereIsSomethingToSay) {
  const struct {
    Counter counter;
    const char* text;
  } rare[] = {
      {Counter::malloc_failed_total, "failed"},
      {Counter::free_foreign_total, "not from cupool"},
      {Counter::free_rejected_total, "refused"},
      {Counter::trims_total, "trims"},
      {Counter::oom_rescues_total, "errors averted"},
      {Counter::neighbours_asked_total, "requests to neighbours"},
      {Counter::given_to_neighbours_bytes_total, "given back for neighbours"},
      {Counter::context_lost_bytes_total, "lost with a context"},
      {Counter::own_async_malloc_calls_total, "own cudaMallocAsync"},
      {Counter::own_async_served_total, "from the caches of streams"},
      {Counter::own_async_free_calls_total, "own cudaFreeAsync"},
      {Counter::managed_malloc_calls_total, "managed allocations"},
      {Counter::array_calls_total, "arrays"},
      {Counter::host_malloc_calls_total, "host allocations"},
      {Counter::host_served_total, "from the cache of host memory"},
      {Counter::host_free_waits_total, "host frees that waited"},
      {Counter::host_lost_bytes_total, "host bytes lost"},
  };
  for (const auto& each : rare) {
    stats::Snapshot snapshot = fixed_snapshot();
    snapshot.devices[0][each.counter] = 0;
    EXPECT_THAT(text_report(snapshot), Not(HasSubstr(each.text)));
    snapshot.devices[0][each.counter] = 7;
    EXPECT_THAT(text_report(snapshot), HasSubstr(each.text));
  }
}

TEST_F(TextReport, PassedThroughMemoryIsShownOnceThereWasAny) {
  stats::Snapshot snapshot = fixed_snapshot();
  snapshot.devices[0][Gauge::passthrough_bytes] = {0, 4096};
  EXPECT_THAT(text_report(snapshot), HasSubstr("the program's in all"));
}

TEST_F(TextReport, EveryDeviceHasItsPart) {
  stats::Snapshot snapshot = fixed_snapshot();
  snapshot.devices.push_back(test::fixed_device());
  snapshot.devices[1].ordinal = 5;
  snapshot.devices.push_back(stats::DeviceSnapshot{});
  const std::string report = text_report(snapshot);
  EXPECT_THAT(report, HasSubstr("Device 0: NVIDIA H200"));
  EXPECT_THAT(report, HasSubstr("Device 5: NVIDIA H200"));
  EXPECT_THAT(report, HasSubstr("Without a current context: 0 malloc"));
}

TEST_F(TextReport, LeaksAreListedWithWhereTheyCameFrom) {
  stats::Snapshot snapshot = fixed_snapshot();
  EXPECT_THAT(text_report(snapshot), Not(HasSubstr("by call site")));
  snapshot.leaks.one_in = 1;
  EXPECT_THAT(text_report(snapshot), HasSubstr("Never freed, by call site: nothing\n"));
  for (std::uint64_t i = 0; i < 12; ++i) {
    snapshot.leaks.sites.push_back(
        {"device", 0, 2, 4096 - i, {{"/lib/a\n.so", 0x12ab, "leak(int)"}}});
  }
  const std::string report = text_report(snapshot);
  EXPECT_THAT(report,
              HasSubstr("  4.00 KiB in 2 blocks on device 0\n    /lib/a?.so+0x12ab leak(int)\n"));
  EXPECT_THAT(report, HasSubstr("and 2 more call sites"));
  snapshot.leaks.one_in = 64;
  EXPECT_THAT(text_report(snapshot), HasSubstr("estimated: one allocation in 64 was sampled"));
}

TEST_F(TextReport, AnEmptySnapshotIsNoTrouble) {
  EXPECT_THAT(text_report(stats::Snapshot{}), HasSubstr("no device was used"));
}

TEST_F(TextReport, TheOneLaneHasALineIfThereIsOne) {
  stats::Snapshot snapshot = fixed_snapshot();
  EXPECT_THAT(text_report(snapshot), Not(HasSubstr("lane")));
  const auto line_of = [&](const stats::LaneFigures& lane) {
    snapshot.lane = lane;
    const std::string report = text_report(snapshot);
    const std::size_t begin = std::min(report.find("One lane: "), report.size());
    return report.substr(begin, report.find('\n', begin) - begin);
  };
  constexpr std::uint64_t s = 1'000'000'000;
  EXPECT_EQ(line_of({3 * s, 0, nullptr, nullptr, nullptr}), "One lane: 3.00 s of 12.3 s");
  EXPECT_EQ(line_of({3 * s, 1, "cuA", nullptr, nullptr}),
            "One lane: 3.00 s of 12.3 s; away once, last by cuA");
  EXPECT_EQ(line_of({14 * s, 2000, "cuA", nullptr, nullptr}),
            "One lane: 14.0 s of 14.0 s; away 2,000 times, last by cuA")
      << "opened before the process allocated";
  EXPECT_EQ(line_of({s, 0, nullptr, "this", nullptr}),
            "One lane: 1.00 s of 12.3 s; left for good: this");
  EXPECT_EQ(line_of({s, 2, "cuA", "this", "cuB"}),
            "One lane: 1.00 s of 12.3 s; away 2 times, last by cuA; left for good: this, by cuB");
  EXPECT_EQ(line_of({0, 0, nullptr, "this", "cuB"}), "One lane: none: this, by cuB");
}

TEST_F(TextReport, NamesFromOutsideStayOnTheirLine) {
  stats::Snapshot snapshot = fixed_snapshot();
  snapshot.process.program_path = "/tmp/a\nforged line\x1b[2J";
  EXPECT_THAT(text_report(snapshot), HasSubstr("/tmp/a?forged line?[2J"));
}

TEST(Suggestion, IsTheHighestPoolRoundedUpToTheDriversStep) {
  constexpr std::uint64_t mib = 1 << 20;
  stats::Snapshot snapshot = fixed_snapshot();
  EXPECT_EQ(suggested_pool_bytes(snapshot), 3104 * mib) << "3090 MiB, in steps of 32 MiB";
  snapshot.devices.push_back(test::fixed_device());
  snapshot.devices[1].pool.reserved_high = 4096 * mib;
  EXPECT_EQ(suggested_pool_bytes(snapshot), 4096 * mib);
  EXPECT_EQ(suggested_pool_bytes(stats::Snapshot{}), 0u);
}

TEST(Suggestion, IsWrittenAsOptionsTakeIt) {
  EXPECT_EQ(option_value(0), "0");
  EXPECT_EQ(option_value(1000), "1000");
  EXPECT_EQ(option_value(std::uint64_t{3104} << 20), "3104M");
  EXPECT_EQ(option_value(std::uint64_t{4} << 30), "4G");
}

}  // namespace
}  // namespace cupool::report
