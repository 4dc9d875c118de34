// SPDX-License-Identifier: Apache-2.0
// The time left is that of the runs behind, each way by itself: with cupool a run may take half.
#include "cli/trial/run_progress.h"

#include <optional>
#include <utility>

#include "util/clock.h"

namespace cupool::cli {

namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
// Seconds are no news in a time of minutes.
constexpr std::uint64_t kMostSeconds = 120;
// A program that has just begun needs no clock.
constexpr std::uint64_t kQuietNs = 2 * kSecond;

std::string time_text(std::uint64_t ns) {
  const std::uint64_t seconds = (ns + kSecond - 1) / kSecond;
  if (seconds < kMostSeconds) return std::to_string(seconds) + " s";
  return std::to_string((seconds + 30) / 60) + " min";
}

// The mean of a way's runs; of all runs for any way.
std::optional<std::uint64_t> mean_of(const RunPlan& plan, std::optional<std::size_t> way) {
  std::uint64_t sum = 0;
  std::uint64_t runs = 0;
  for (std::size_t run = 0; run < plan.took_ns.size(); ++run) {
    if (way && plan.order[run] != *way) continue;
    sum += plan.took_ns[run];
    ++runs;
  }
  if (runs == 0) return std::nullopt;
  return sum / runs;
}

}  // namespace

std::string RunPlan::text(std::uint64_t elapsed_ns) const {
  const std::size_t run = took_ns.size();
  std::string text = "run " + std::to_string(run + 1) + " of " + std::to_string(order.size()) +
                     ", " + names[order[run]];
  const std::optional<std::uint64_t> usual = mean_of(*this, std::nullopt);
  if (!usual) return elapsed_ns < kQuietNs ? text : text + ", " + time_text(elapsed_ns) + " so far";
  std::uint64_t left = 0;
  for (std::size_t i = run; i < order.size(); ++i) {
    const std::uint64_t needs = mean_of(*this, order[i]).value_or(*usual);
    left += i > run ? needs : needs > elapsed_ns ? needs - elapsed_ns : 0;
  }
  return text + ", " + time_text(left < kSecond ? kSecond : left) + " left";
}

RunProgress::RunProgress(std::vector<std::string> names, std::vector<std::size_t> order)
    : plan_{std::move(names), std::move(order), {}} {}

void RunProgress::begin() {
  began_ns_ = util::now_ns();
  tick();
}

void RunProgress::tick() {
  progress_.show(plan_.text(util::now_ns() - began_ns_));
}

void RunProgress::end() {
  plan_.took_ns.push_back(util::now_ns() - began_ns_);
}

}  // namespace cupool::cli
