// SPDX-License-Identifier: Apache-2.0
// Sums over processes; shares are averages, so that a job is judged as its typical process.
#include "cli/page/observed.h"

#include <algorithm>

#include "report/observe.h"
#include "util/text.h"

namespace cupool::cli {

using util::format_bytes;
using util::format_count;
using util::format_duration_ns;

namespace {

std::uint64_t sum_of(const std::vector<Report>& reports, const char* key) {
  std::uint64_t sum = 0;
  for (const Report& report : reports) sum += observed_figure(report, key);
  return sum;
}

// The saving per thread as a share of the run.
double share_of(const Report& report) {
  if (report.ran_ns() == 0) return 0;
  const std::uint64_t threads = std::max<std::uint64_t>(observed_figure(report, "threads"), 1);
  return static_cast<double>(observed_figure(report, "saved_at_most_ns")) /
         static_cast<double>(threads) / static_cast<double>(report.ran_ns());
}

// The average over processes that allocated.
struct Job {
  report::Saving saving;
  std::uint64_t ran_ns = 0;
  std::size_t seen = 0;
};

Job job_of(const std::vector<Report>& reports) {
  Job job;
  std::uint64_t saved_ns = 0;
  for (const Report& report : reports) {
    job.ran_ns = std::max(job.ran_ns, report.ran_ns());
    if (observed_figure(report, "malloc_calls_total") == 0) continue;
    job.saving.share += share_of(report);
    saved_ns += observed_figure(report, "saved_at_most_ns") /
                std::max<std::uint64_t>(observed_figure(report, "threads"), 1);
    ++job.seen;
  }
  if (job.seen == 0) return job;
  job.saving.share /= static_cast<double>(job.seen);
  job.saving.saved_ns = saved_ns / job.seen;
  job.saving.no_stall = sum_of(reports, "free_calls_total") > 0 &&
                        sum_of(reports, "free_busy_calls_total") == 0 &&
                        sum_of(reports, "free_unknown_calls_total") == 0;
  return job;
}

std::string verdict_of(const std::vector<Report>& reports, const Job& job) {
  if (job.seen == 0) {
    return "Nothing to observe: no process allocated memory that cupool would serve";
  }
  return std::string(report::words_of(report::worth_of(job.saving), job.saving.no_stall)) +
         ": pooling would save at most " + format_duration_ns(sum_of(reports, "saved_at_most_ns")) +
         " of " + format_duration_ns(sum_of(reports, "legacy_ns")) + " in malloc and free of " +
         format_count(reports.size()) + " processes together, in a run of " +
         format_duration_ns(job.ran_ns);
}

std::string calls_in_words(const std::vector<Report>& reports) {
  const std::uint64_t threads = sum_of(reports, "threads");
  return format_count(sum_of(reports, "malloc_calls_total")) + " allocations took " +
         format_duration_ns(sum_of(reports, "malloc_ns_total")) + ", " +
         format_count(sum_of(reports, "free_calls_total")) + " frees " +
         format_duration_ns(sum_of(reports, "free_ns_total")) + ", by " + format_count(threads) +
         (threads == 1 ? " thread" : " threads") + " of " + format_count(reports.size()) +
         " processes.";
}

std::string stalls_in_words(const std::vector<Report>& reports) {
  const std::uint64_t frees = sum_of(reports, "free_calls_total");
  const std::uint64_t unknown = std::min(frees, sum_of(reports, "free_unknown_calls_total"));
  const std::uint64_t busy = sum_of(reports, "free_busy_calls_total");
  const std::string known = format_count(frees - unknown) + " frees ";
  std::string text;
  if (busy > 0) {
    text = format_count(busy) + " of " + known + "began while the GPU was busy and took " +
           format_duration_ns(sum_of(reports, "free_busy_ns_total")) + ": these are stalls.";
  } else if (frees > unknown) {
    text = "None of " + known + "found the GPU busy: there is no stall.";
  }
  if (unknown == 0) return text;
  return text + (text.empty() ? "" : " ") + "For " + format_count(unknown) +
         " frees this is unknown.";
}

std::string memory_in_words(const std::vector<Report>& reports) {
  return "The processes had at most " + format_bytes(sum_of(reports, "live_peak_bytes")) +
         " live, each at its own peak. Pooling would hold at least " +
         format_bytes(sum_of(reports, "rounded_peak_bytes")) + " and at most about " +
         format_bytes(sum_of(reports, "pool_most_bytes")) + " in all of them together.";
}

// The processes with the smallest and the largest saving.
std::string spread_in_words(const std::vector<Report>& reports) {
  const auto [least, most] = std::minmax_element(
      reports.begin(), reports.end(),
      [](const Report& a, const Report& b) { return share_of(a) < share_of(b); });
  const auto text = [](const Report& report) {
    return util::format_percent(static_cast<std::uint64_t>(share_of(report) * 10000), 10000) +
           " in " + name_of(report, true);
  };
  return "As a share of the run, a thread would save at most " + text(*least) + " to " +
         text(*most) + ".";
}

}  // namespace

bool is_worth_a_try(const std::vector<Report>& reports) {
  const Job job = job_of(reports);
  if (job.seen == 0) return false;
  const report::Worth worth = report::worth_of(job.saving);
  return worth == report::Worth::yes || worth == report::Worth::little;
}

Story tell_observed(const std::vector<Report>& reports) {
  Story story;
  const Job job = job_of(reports);
  story.headline = verdict_of(reports, job);
  for (std::string text : {calls_in_words(reports), stalls_in_words(reports),
                           memory_in_words(reports), spread_in_words(reports)}) {
    if (!text.empty()) story.sentences.push_back(std::move(text));
  }
  for (const std::string& text : modes_in_words(reports)) story.sentences.push_back(text);
  if (job.seen > 0) {
    story.sentences.emplace_back(
        report::advice_of(report::worth_of(job.saving), job.saving.no_stall));
  }
  bool each_differs = false;  // such as the number of allocations that take fresh memory
  for (const std::string& assumed : reports.front().observe->assumptions) {
    const bool of_all = std::all_of(reports.begin(), reports.end(), [&](const Report& report) {
      const std::vector<std::string>& others = report.observe->assumptions;
      return std::find(others.begin(), others.end(), assumed) != others.end();
    });
    if (of_all) story.sentences.push_back("Assumed: " + assumed);
    each_differs = each_differs || !of_all;
  }
  if (each_differs) {
    story.sentences.emplace_back("Assumed: allocations of fresh memory cost what they cost now.");
  }
  return story;
}

}  // namespace cupool::cli
