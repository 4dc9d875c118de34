// SPDX-License-Identifier: Apache-2.0
// What an observed run concludes: what will apply under cupool, and what is worth a try.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/page/story.h"
#include "example_report.h"
#include "report/observe.h"

namespace cli {
namespace {

using cupool::report::conclude;
using cupool::report::Conclusion;
using cupool::report::Worth;
using cupool::stats::Observation;
using cupool::stats::Snapshot;
using nlohmann::json;

constexpr std::uint64_t kMs = 1'000'000;

// A run of a second in one thread.
Snapshot observed(std::uint64_t busy_frees, std::uint64_t busy_ns, std::uint64_t malloc_ns) {
  Snapshot snapshot;
  snapshot.end_wall_ns = 1000 * kMs;
  snapshot.process.start_wall_ns = 0;
  snapshot.process.free_mode = "driver";
  snapshot.process.requested_free_mode = "auto";
  Observation& seen = snapshot.observation.emplace();
  seen.threads = 1;
  seen.mallocs = 100;
  seen.malloc_ns = malloc_ns;
  seen.frees = 100;
  seen.busy_frees = busy_frees;
  seen.busy_free_ns = busy_ns;
  seen.free_ns = busy_ns;
  return snapshot;
}

std::string words(const Conclusion& found) {
  std::string text = found.verdict + "\n";
  for (const std::string& sentence : found.sentences) text += sentence + "\n";
  for (const std::string& assumption : found.assumptions) text += assumption + "\n";
  return text;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ObserveVerdict, WithoutAStallAndWithCheapCallsThereIsNothingToGain) {
  const Conclusion found = conclude(observed(0, 0, 5 * kMs));
  EXPECT_EQ(found.worth, Worth::no);
  EXPECT_EQ(found.verdict.rfind("Nothing to gain: ", 0), 0u) << found.verdict;
  EXPECT_TRUE(has(words(found), "None of 100 frees found the GPU busy: there is no stall."));
  EXPECT_TRUE(has(words(found), "A profiler shows where its time goes.")) << words(found);
  EXPECT_FALSE(has(words(found), "Worth trying"));
  EXPECT_FALSE(has(words(found), "these are stalls"));
}

// A share alone could praise a saving of microseconds in a run of microseconds.
TEST(ObserveVerdict, MicrosecondsWithoutAStallAreNotWorthATry) {
  Snapshot snapshot = observed(0, 0, 900'000);
  snapshot.end_wall_ns = 2 * kMs;
  EXPECT_EQ(conclude(snapshot).worth, Worth::no);
  EXPECT_EQ(conclude(snapshot).verdict.rfind("Nothing to gain", 0), 0u);
  snapshot.observation->busy_frees = 1;
  EXPECT_EQ(conclude(snapshot).worth, Worth::yes) << "a longer run has more stalls";
}

TEST(ObserveVerdict, CostlyCallsWithoutAStallAreSaidToBeThat) {
  const Conclusion found = conclude(observed(0, 0, 200 * kMs));
  EXPECT_EQ(found.worth, Worth::yes);
  EXPECT_TRUE(has(words(found), "all of the saving is in the calls themselves")) << words(found);
}

TEST(ObserveVerdict, StallsAreWorthATryByTheirShare) {
  EXPECT_EQ(conclude(observed(50, 100 * kMs, kMs)).worth, Worth::yes);
  EXPECT_EQ(conclude(observed(50, 20 * kMs, kMs)).worth, Worth::little);
  const Conclusion found = conclude(observed(50, kMs, kMs));
  EXPECT_EQ(found.worth, Worth::no);
  EXPECT_EQ(found.verdict.rfind("Not worth it: ", 0), 0u) << found.verdict;
}

TEST(ObserveVerdict, UnknownFreesAreNotCalledFreeOfStalls) {
  Snapshot snapshot = observed(0, 0, kMs);
  snapshot.observation->unknown_frees = 100;
  const std::string text = words(conclude(snapshot));
  EXPECT_FALSE(has(text, "no stall")) << text;
  EXPECT_FALSE(has(text, "No free waits for the GPU")) << text;
  EXPECT_TRUE(has(text, "unknown"));
}

TEST(ObserveVerdict, CountsOneAllocationAsOne) {
  Snapshot snapshot = observed(50, 100 * kMs, kMs);
  snapshot.observation->fresh_blocks = 1;
  EXPECT_TRUE(has(words(conclude(snapshot)), "\n1 allocation takes fresh memory and costs what"))
      << words(conclude(snapshot));
  snapshot.observation->fresh_blocks = 2;
  EXPECT_TRUE(has(words(conclude(snapshot)), "2 allocations take fresh memory and cost what"));
}

// Contract 8: what MPI and the free mode make of a free.
TEST(ObserveVerdict, SaysWhatWillWaitUnderCupool) {
  Snapshot snapshot = observed(50, 100 * kMs, kMs);
  EXPECT_TRUE(has(words(conclude(snapshot)), "frees still wait for pending copies"));
  snapshot.process.mode_reason = {"libmpi.so.40 is loaded", "libmpi.so.40", "auto", "malloc"};
  const std::string by_mpi = words(conclude(snapshot));
  EXPECT_TRUE(has(by_mpi, "the program's next call of MPI does")) << by_mpi;
  EXPECT_TRUE(has(by_mpi, "Frees still wait for pending copies")) << by_mpi;
  snapshot.process.mode_reason->free_mode = "sync";
  const Conclusion waiting = conclude(snapshot);
  EXPECT_TRUE(has(words(waiting), "waits as now")) << words(waiting);
  EXPECT_FALSE(has(words(waiting), "no free waits"));
  EXPECT_LT(waiting.saved_ns, 2 * kMs) << "the stalls remain";
  snapshot.process.mode_reason.reset();
  snapshot.process.requested_free_mode = "ordered";
  EXPECT_FALSE(has(words(conclude(snapshot)), "pending copies"));
}

cupool::cli::Report process_with(std::uint64_t busy, std::uint64_t saved_ns) {
  json report = example_report();
  report["observe"] = {{"verdict", "x"},
                       {"sentences", json::array()},
                       {"assumptions", {"a."}},
                       {"threads", 1},
                       {"malloc_calls_total", 10},
                       {"free_calls_total", 10},
                       {"free_busy_calls_total", busy},
                       {"free_unknown_calls_total", 0},
                       {"saved_at_most_ns", saved_ns},
                       {"legacy_ns", saved_ns}};
  return parsed(report);
}

TEST(ObserveVerdict, OfAJobHasNothingToGainWithoutAStallEither) {
  const auto none = cupool::cli::tell({process_with(0, 1000), process_with(0, 2000)});
  EXPECT_EQ(none.headline.rfind("Nothing to gain: ", 0), 0u) << none.headline;
  const auto one = cupool::cli::tell({process_with(0, 1000), process_with(1, 2000)});
  EXPECT_EQ(one.headline.rfind("Nothing to gain", 0), std::string::npos) << one.headline;
}

}  // namespace
}  // namespace cli
