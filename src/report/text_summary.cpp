// SPDX-License-Identifier: Apache-2.0
// The short report: the verdict, and a line for each thing that it is judged by. No zeros, no
// figures of the library's inside.
#include <algorithm>

#include "report/derived.h"
#include "report/observe.h"
#include "report/text.h"
#include "report/text_parts.h"
#include "report/verdict.h"
#include "stats/labels.h"
#include "util/text.h"

namespace cupool::report {

namespace {

using stats::Counter;
using stats::DeviceSnapshot;
using stats::Gauge;
using stats::HistogramSummary;
using stats::label_of;
using util::format_bytes;
using util::format_count;
using util::format_duration_ns;
using util::format_percent;

// Shares of a whole that are not 0: "90.0 % from the thread's cache, 0.5 % fresh memory".
class Shares {
 public:
  explicit Shares(std::uint64_t whole) : whole_(whole) {}
  void add(std::uint64_t part, std::string_view what) {
    if (part == 0) return;
    text_ += (text_.empty() ? "" : ", ") + format_percent(part, whole_) + " " + std::string(what);
  }
  std::string take() { return std::move(text_); }

 private:
  std::uint64_t whole_;
  std::string text_;
};

std::string allocations_in_words(const RunFigures& run) {
  Shares shares(run[Counter::malloc_calls_total]);
  shares.add(run.from_caches(), "from caches");
  for (const Counter way : {Counter::served_fresh_total, Counter::served_passthrough_total,
                            Counter::malloc_failed_total}) {
    shares.add(run[way], stats::short_label_of(way));
  }
  return format_count(run[Counter::malloc_calls_total]) + ": " + shares.take();
}

// They add up: a free counts in one way.
std::string frees_in_words(const RunFigures& run) {
  Shares shares(run[Counter::free_calls_total]);
  shares.add(run.unwaited(), "without a wait");
  for (const Counter reason : kWaitReasons) {
    shares.add(run[reason], "waited " + std::string(label_of(reason)));
  }
  for (const Counter way : {Counter::free_passthrough_total, Counter::free_foreign_total,
                            Counter::free_null_total, Counter::free_rejected_total}) {
    shares.add(run[way], stats::short_label_of(way));
  }
  return format_count(run[Counter::free_calls_total]) + ": " + shares.take();
}

std::string times_in_words(const DeviceSnapshot& device) {
  std::string text;
  const auto add = [&text](const char* call, const HistogramSummary& time) {
    if (time.count == 0) return;
    text += std::string(text.empty() ? "" : "; ") + call + " " + format_duration_ns(time.p50_ns) +
            " (p99 " + format_duration_ns(time.p99_ns) + ", all calls " +
            format_duration_ns(time.sum_ns) + ")";
  };
  add("malloc", device.malloc_time);
  add("free", device.free_time);
  return text;
}

std::string memory_in_words(const DeviceSnapshot& device) {
  std::string text;
  const auto add = [&text](std::int64_t bytes, std::string_view what) {
    if (bytes <= 0) return;
    text += (text.empty() ? "" : "; ") + format_bytes(static_cast<std::uint64_t>(bytes)) + " " +
            std::string(what);
  };
  add(device[Gauge::application_bytes].current + device[Gauge::rounding_bytes].current,
      "the program's");
  add(device[Gauge::retired_bytes].current, label_of(Gauge::retired_bytes));
  add(device[Gauge::cached_bytes].current + device.driver_slack_bytes(),
      label_of(Gauge::cached_bytes));
  add(device[Gauge::passthrough_bytes].current, label_of(Gauge::passthrough_bytes));
  add(device[Gauge::default_pool_idle_bytes].current, label_of(Gauge::default_pool_idle_bytes));
  add(device[Gauge::host_cached_bytes].current, label_of(Gauge::host_cached_bytes));
  return text.empty() ? "nothing" : text;
}

// What a verdict is judged by, a line each; lines with nothing to say are left out.
void add_overview(Page& page, const stats::Snapshot& snapshot) {
  constexpr std::size_t kMostDevices = 4;
  const stats::ProcessInfo& process = snapshot.process;
  const RunFigures run = run_figures_of(snapshot);
  if (run[Counter::malloc_calls_total] > 0) {
    page.text(wrapped("  Allocations  ", allocations_in_words(run)));
  }
  if (run[Counter::free_calls_total] > 0) {
    page.text(wrapped("  Frees        ", frees_in_words(run)));
  }
  std::size_t shown = 0;
  for (const DeviceSnapshot& device : snapshot.devices) {
    if (device.ordinal < 0 || ++shown > kMostDevices) continue;
    std::string title = std::to_string(device.ordinal);
    if (!device.name.empty()) title += ": " + one_line(device.name);
    if (device.total_memory_bytes > 0) title += ", " + format_bytes(device.total_memory_bytes);
    page.text(wrapped("  Device       ", title));
    const std::string times = times_in_words(device);
    if (!times.empty()) page.text(wrapped("  Median call  ", times));
    page.text(wrapped(snapshot.number == 0 ? "  At exit      " : "  Now          ",
                      memory_in_words(device)));
    if (unaccounted_bytes(device) != 0) {
      page.line("  ! the sum is off by " + signed_text(unaccounted_bytes(device), format_count) +
                " bytes: threads were still allocating, or cupool has a fault");
    }
  }
  if (shown > kMostDevices) {
    page.line("  and " + std::to_string(shown - kMostDevices) + " more devices");
  }
  if (shown == 0) page.line("  No device was used.");
  if (modes_differ(process)) {
    page.text(wrapped("  Modes        ", one_line(modes_in_words(process))));
  }
  std::string changed;
  for (const stats::SettingRow& row : process.settings) {
    if (row.is_default) continue;
    changed += (changed.empty() ? "" : " ") + one_line(row.name) + "=" + one_line(row.value);
  }
  if (!changed.empty()) page.text(wrapped("  Settings     ", changed));
}

}  // namespace

std::string text_summary(const stats::Snapshot& snapshot) {
  Page page;
  const Verdict verdict = add_verdict(page, snapshot);
  if (snapshot.observation) {
    page.text(observe_text(snapshot));
  } else {
    add_overview(page, snapshot);
  }
  page.text(finding_lines(verdict));
  add_leaks(page, snapshot.leaks, snapshot.number == 0);
  page.line("  Every figure: CUPOOL_STATS=text,full, or CUPOOL_STATS=json and cupool report");
  return page.take();
}

}  // namespace cupool::report
