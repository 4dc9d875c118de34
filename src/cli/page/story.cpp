// SPDX-License-Identifier: Apache-2.0
// Sums the figures of all devices and processes, then writes sentences from the sums.
#include "cli/page/story.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "cli/page/observed.h"
#include "report/derived.h"
#include "report/verdict.h"
#include "stats/labels.h"
#include "util/text.h"

namespace cupool::cli {

using stats::Counter;
using stats::Gauge;
using util::format_bytes;
using util::format_count;
using util::format_duration_ns;
using util::format_percent;

namespace {

// Sums over all devices of all processes.
struct Sums {
  std::uint64_t mallocs = 0, cached = 0, fresh = 0, passed = 0, failed = 0;
  std::uint64_t frees = 0, unwaited = 0, waits = 0, wait_ns = 0;
  std::uint64_t malloc_ns = 0, free_ns = 0, ran_ns = 0;
  std::uint64_t threads = 0;  // that called malloc or free; 0: unknown
  std::uint64_t rescues = 0, rejected = 0, leaked_blocks = 0, leaked_bytes = 0;
  std::uint64_t peak = 0, total = 0, own_peak = 0, idle = 0;  // of the fullest device
  std::size_t devices = 0;
  std::string peak_device;
  const char* took = "";  // what reached that peak
};

void add_device(const Report& report, const DeviceReport& device, bool many, Sums* sums) {
  sums->malloc_ns += device.malloc_time.sum;
  sums->free_ns += device.free_time.sum;
  sums->leaked_blocks += bytes_of(device.gauge("leaked_blocks").current);
  sums->leaked_bytes += bytes_of(device.gauge("leaked_bytes").current);
  ++sums->devices;
  const std::uint64_t peak = peak_memory(device);
  if (peak <= sums->peak) return;
  sums->peak = peak;
  sums->took = device.pool && device.pool->reserved_high == peak        ? "The pool reserved"
               : bytes_of(device.gauge(Gauge::held_bytes).peak) == peak ? "cupool held"
                                                                        : "The process took";
  sums->total = device.total_memory;
  sums->own_peak = bytes_of(device.gauge("device_bytes").peak);
  sums->idle = bytes_of(device.gauge(Gauge::cached_bytes).current) +
               bytes_of(device.driver_slack.value_or(0));
  sums->peak_device = "device " + std::to_string(device.ordinal);
  if (many) sums->peak_device += " of " + name_of(report, false);
}

Sums sum_of(const std::vector<Report>& reports) {
  Sums sums;
  for (const Report& report : reports) {
    sums.mallocs += report.counter("malloc_calls_total");
    sums.cached +=
        report.counter("served_thread_cache_total") + report.counter("served_shared_cache_total");
    sums.fresh += report.counter("served_fresh_total");
    sums.passed += report.counter("served_passthrough_total");
    sums.failed += report.counter("malloc_failed_total");
    sums.frees += report.counter("free_calls_total");
    sums.unwaited += report.counter("frees_unwaited_busy_total");
    sums.waits += report.counter("free_waits_total");
    sums.wait_ns += report.counter("free_wait_ns_total");
    sums.rescues += report.counter("oom_rescues_total");
    sums.rejected += report.counter("free_rejected_total");
    sums.ran_ns = std::max(sums.ran_ns, report.ran_ns());
    sums.threads += report.thread_count;
    for (const DeviceReport& device : report.devices) {
      add_device(report, device, reports.size() > 1, &sums);
    }
  }
  return sums;
}

// The figures of all processes, for the verdict.
report::RunFigures run_figures_of(const std::vector<Report>& reports, const Sums& sums) {
  report::RunFigures run;
  run.processes = reports.size();
  run.at_exit = reports.size() > 1 || reports[0].snapshot_number == 0;
  run.leaked_blocks = sums.leaked_blocks;
  run.leaked_bytes = sums.leaked_bytes;
  run.peak_bytes = sums.peak;
  run.program_peak_bytes = sums.own_peak;
  run.idle_bytes = sums.idle;
  run.device_bytes = sums.total;
  run.device = sums.devices > 1 ? sums.peak_device : "";
  for (const Report& report : reports) {
    for (std::size_t i = 0; i < stats::kCounters; ++i) {
      run.counters[i] += report.counter(static_cast<Counter>(i));
    }
    run.lists_leaks = run.lists_leaks || !report.leaks.empty();
    for (const LeakReport& leak : report.leaks) {
      if (leak.kind == "device") continue;
      run.other_leaked_blocks += leak.blocks;
      run.other_leaked_bytes += leak.bytes;
    }
    run.counts_stalls = run.counts_stalls && report.free_mode != "ordered";
    if (report.has_rdma_library()) {
      run.rdma = true;
      run.rdma_library = report.mode_reason->library;
    }
    for (const SettingReport& setting : report.settings) {
      if (!setting.is_default) run.note_setting(setting.name, setting.value);
    }
    for (const DeviceReport& device : report.devices) {
      run.host_peak_bytes += bytes_of(device.gauge(Gauge::host_held_bytes).peak);
      run.host_idle_bytes += bytes_of(device.gauge(Gauge::host_cached_bytes).current);
      if (device.counter(Counter::free_waits_pending_limit_total) == 0) continue;
      run.suggested_pending_bytes =
          std::max(run.suggested_pending_bytes,
                   report::suggested_pending_bytes(
                       bytes_of(device.gauge(Gauge::retired_bytes).peak), device.total_memory));
    }
  }
  return run;
}

std::string capitalised(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 32);
  return text;
}

std::uint64_t spent_ns(const Sums& sums) {
  return sums.free_ns > UINT64_MAX - sums.malloc_ns ? UINT64_MAX : sums.malloc_ns + sums.free_ns;
}

// The sum is an estimate: a timed call of a cache counts as 63, one that was interrupted, too.
bool exceeds_run(const Sums& sums) {
  return sums.threads > 0 && sums.ran_ns > 0 && spent_ns(sums) / sums.threads > sums.ran_ns;
}

std::string number_of(std::uint64_t number, const char* one, const char* many) {
  return format_count(number) + " " + (number == 1 ? one : many);
}

// The time in malloc and free: a share of the run for a single thread only, since nobody knows how
// long the others lived.
std::string spent_in_words(const std::vector<Report>& reports, const Sums& sums) {
  const std::uint64_t spent = spent_ns(sums);
  if (spent == 0) return "";
  if (exceeds_run(sums)) {
    return "The time in malloc and free is not known: its estimate, " + format_duration_ns(spent) +
           ", is more than the run of " + format_duration_ns(sums.ran_ns) +
           ". Calls served from a cache are timed once in 63, and one that was interrupted counts "
           "as 63.";
  }
  if (reports.size() == 1 && sums.threads == 1 && sums.ran_ns > 0) {
    return "Spent " + format_duration_ns(spent) + " in malloc and free, " +
           format_percent(spent, sums.ran_ns) + " of a run of " + format_duration_ns(sums.ran_ns) +
           ".";
  }
  std::string by;
  if (sums.threads > 0) by = " by " + number_of(sums.threads, "thread", "threads");
  if (reports.size() > 1) by += " of " + number_of(reports.size(), "process", "processes");
  return "Spent " + format_duration_ns(spent) + " in malloc and free" + by + ", in a run of " +
         format_duration_ns(sums.ran_ns) + ".";
}

std::string stalls_in_words(const Sums& sums) {
  if (sums.unwaited == 0) return "";
  return "With the driver, a free that finds the GPU busy stalls its thread until the GPU is idle. "
         "These frees returned at once. No report has the time that this saved: cupool observe "
         "estimates it, and cupool compare measures it.";
}

std::string memory_in_words(const Sums& sums) {
  if (sums.peak == 0) return "";
  std::string text = sums.took + (" at most " + format_bytes(sums.peak));
  if (sums.total > 0) {
    text += " of " + format_bytes(sums.total) + " (" + format_percent(sums.peak, sums.total) + ")";
  }
  text += " on " + sums.peak_device;
  if (sums.own_peak > 0) {
    text += "; the program itself had at most " + format_bytes(sums.own_peak) + " there";
  }
  return text + ".";
}

std::string serving_in_words(const Sums& sums) {
  if (sums.mallocs == 0) return "";
  std::string text = format_percent(sums.cached, sums.mallocs) + " of " +
                     format_count(sums.mallocs) +
                     " allocations came from caches, without the "
                     "driver; " +
                     format_count(sums.fresh) + " took fresh memory";
  if (sums.passed > 0) text += ", " + format_count(sums.passed) + " passed through";
  return text + ".";
}

void add(std::string text, std::vector<std::string>* to) {
  if (!text.empty()) to->push_back(std::move(text));
}

void add_troubles(const std::vector<Report>& reports, Story* story) {
  std::vector<std::string>* troubles = &story->troubles;
  for (const auto& [what, cure] : story->verdict.findings) {
    troubles->push_back(what + ": " + cure + ".");
  }
  for (const Report& report : reports) {
    for (const DeviceReport& device : report.devices) {
      if (device.unaccounted == 0) continue;
      troubles->push_back("The sum of device " + std::to_string(device.ordinal) + " of " +
                          name_of(report, false) + " is off by " +
                          std::to_string(device.unaccounted) +
                          " bytes: threads were still allocating, or cupool has a fault.");
    }
  }
}

void add_tiles(const Sums& sums, bool counts_stalls, Story* story) {
  if (spent_ns(sums) > 0 && !exceeds_run(sums)) {
    story->tiles.push_back({"In malloc and free", format_duration_ns(spent_ns(sums)),
                            "in a run of " + format_duration_ns(sums.ran_ns)});
  }
  if (sums.frees > 0) {
    const std::string frees = format_count(sums.frees);
    const bool counted = counts_stalls || sums.unwaited > 0;
    story->tiles.push_back(
        counted ? Tile{"Stalls avoided", format_count(sums.unwaited),
                       format_percent(sums.unwaited, sums.frees) + " of " + frees + " frees"}
                : Tile{"Frees", frees, "stalls avoided are not counted in ordered"});
    story->tiles.push_back({"Frees that waited", format_count(sums.waits),
                            sums.waits > 0 ? format_duration_ns(sums.wait_ns) + " in all" : ""});
  }
  if (sums.peak > 0) {
    story->tiles.push_back({"Peak memory", format_bytes(sums.peak),
                            sums.total > 0
                                ? "of " + format_bytes(sums.total) + ", " + sums.peak_device
                                : sums.peak_device});
  }
  if (sums.mallocs > 0) {
    story->tiles.push_back({"Served from caches", format_percent(sums.cached, sums.mallocs),
                            "of " + format_count(sums.mallocs) + " allocations"});
  }
}

void add_observed_tiles(const Report& seen, Story* story) {
  const auto figure = [&seen](const char* key) { return observed_figure(seen, key); };
  if (figure("malloc_calls_total") == 0) return;
  story->tiles.push_back({"Could be saved, at most", format_duration_ns(figure("saved_at_most_ns")),
                          "of " + format_duration_ns(figure("legacy_ns")) + " in malloc and free"});
  story->tiles.push_back({"Frees that stalled", format_count(figure("free_busy_calls_total")),
                          "of " + format_count(figure("free_calls_total")) + ", " +
                              format_duration_ns(figure("free_busy_ns_total")) + " in all"});
  story->tiles.push_back({"Peak memory now", format_bytes(figure("live_peak_bytes")), "live"});
  story->tiles.push_back({"With pooling", format_bytes(figure("rounded_peak_bytes")),
                          "to about " + format_bytes(figure("pool_most_bytes"))});
}

}  // namespace

std::uint64_t bytes_of(std::int64_t value) {
  return value > 0 ? static_cast<std::uint64_t>(value) : 0;
}

std::uint64_t observed_figure(const Report& report, const char* key) {
  if (!report.observe) return 0;
  const auto found = report.observe->figures.find(key);
  return found == report.observe->figures.end() ? 0 : found->second;
}

std::uint64_t peak_memory(const DeviceReport& device) {
  return report::peak_bytes({bytes_of(device.gauge(Gauge::held_bytes).peak),
                             device.pool ? device.pool->reserved_high : 0,
                             bytes_of(device.gauge(Gauge::device_bytes).peak),
                             bytes_of(device.gauge(Gauge::passthrough_bytes).current)});
}

std::vector<std::string> modes_in_words(const std::vector<Report>& reports) {
  std::map<std::string, std::size_t> processes;
  for (const Report& report : reports) {
    if (report.modes_differ()) ++processes[report.mode_reason->text];
  }
  std::vector<std::string> sentences;
  for (const auto& [text, number] : processes) {
    const std::string which =
        number == reports.size()
            ? ""
            : "In " + format_count(number) + " of " + format_count(reports.size()) + " processes: ";
    sentences.push_back(which + text + ".");
  }
  return sentences;
}

std::string missing_ranks_in_words(const std::vector<Report>& reports) {
  std::uint64_t started = 0;
  std::set<std::string> reported;
  for (const Report& report : reports) {
    started = std::max(started, report.ranks);
    if (!report.rank.empty()) reported.insert(report.rank);
  }
  if (reported.size() >= started) return "";
  return "Only " + format_count(reported.size()) + " of " + format_count(started) +
         " ranks reported. The others allocated no GPU memory, or ran on machines that do not "
         "share "
         "this one's TMPDIR; set it to a shared folder.";
}

namespace {

// "a, b, c and 2 more", of each value once.
std::string listed(const std::set<std::string>& values) {
  constexpr std::size_t kMost = 3;
  std::string text;
  std::size_t number = 0;
  for (const std::string& value : values) {
    if (++number > kMost) break;
    text += (text.empty() ? "" : ", ") + value;
  }
  return values.size() <= kMost ? text
                                : text + " and " + format_count(values.size() - kMost) + " more";
}

Story tell_figures(const std::vector<Report>& reports) {
  const auto is_observed = [](const Report& report) { return report.observe.has_value(); };
  const auto observed =
      static_cast<std::size_t>(std::count_if(reports.begin(), reports.end(), is_observed));
  if (reports.size() > 1 && observed == reports.size()) return tell_observed(reports);
  if (observed > 0 && observed < reports.size()) {
    std::vector<Report> served;
    std::remove_copy_if(reports.begin(), reports.end(), std::back_inserter(served), is_observed);
    Story story = tell_figures(served);
    story.sentences.push_back(
        "Left out: " + number_of(observed, "process", "processes") +
        " that only observed (CUPOOL_MODE=observe). cupool served nothing there.");
    return story;
  }
  Story story;
  const Sums sums = sum_of(reports);
  if (reports.size() == 1 && reports[0].observe) {
    story.headline = reports[0].observe->verdict;
    story.sentences = reports[0].observe->sentences;
    for (const std::string& line : reports[0].observe->assumptions) {
      story.sentences.push_back("Assumed: " + line);
    }
    add_observed_tiles(reports[0], &story);
    return story;
  }
  const report::RunFigures run = run_figures_of(reports, sums);
  story.verdict = report::verdict_of(run);
  story.headline = capitalised(story.verdict.time);
  add(spent_in_words(reports, sums), &story.sentences);
  for (std::string& text : modes_in_words(reports)) story.sentences.push_back(std::move(text));
  add(stalls_in_words(sums), &story.sentences);
  add(memory_in_words(sums), &story.sentences);
  add(serving_in_words(sums), &story.sentences);
  add_troubles(reports, &story);
  add_tiles(sums, run.counts_stalls, &story);
  return story;
}

}  // namespace

std::vector<std::string> differences_in_words(const std::vector<Report>& reports) {
  std::set<std::string> programs;
  std::set<std::string> versions;
  for (const Report& report : reports) {
    programs.insert(util::base_name(report.program));
    versions.insert(report.cupool_version);
  }
  std::vector<std::string> sentences;
  if (programs.size() > 1) {
    sentences.push_back("These processes are of different programs (" + listed(programs) + ").");
  }
  if (versions.size() > 1) {
    sentences.push_back("They ran with different versions of cupool (" + listed(versions) +
                        "): what differs between them may be due to that.");
  }
  return sentences;
}

Story tell(const std::vector<Report>& reports) {
  Story story = tell_figures(reports);
  for (std::string& text : differences_in_words(reports)) {
    story.sentences.push_back(std::move(text));
  }
  return story;
}

}  // namespace cupool::cli
