// SPDX-License-Identifier: Apache-2.0
// The report for people with every figure: the verdict, a sum of memory that adds up, calls, times,
// events, and settings. Figures of zero are left out.
#include "report/text.h"

#include <algorithm>
#include <vector>

#include "report/derived.h"
#include "report/observe.h"
#include "report/text_parts.h"
#include "report/verdict.h"
#include "stats/labels.h"
#include "util/text.h"

namespace cupool::report {

namespace {

using stats::Counter;
using stats::DeviceSnapshot;
using stats::Gauge;
using stats::GaugeValue;
using stats::HistogramSummary;
using stats::label_of;
using util::format_bytes;
using util::format_count;
using util::format_duration_ns;
using util::format_percent;

constexpr std::size_t kTimeWidth = 11;

// A label behind what stands before it in its row: indentation, the sign of a summand.
std::string row_label(const char* before, std::string_view label) {
  return std::string(before) + std::string(label);
}

void add_lane(Page& page, const stats::LaneFigures& lane, std::uint64_t ran_ns) {
  std::string text = "One lane: ";
  const bool was_open = lane.inside_ns != 0 || lane.end == nullptr;
  if (was_open) {
    // It may have been opened before the first allocation, with which the run begins.
    const std::uint64_t whole_ns = std::max(lane.inside_ns, ran_ns);
    text += format_duration_ns(lane.inside_ns) + " of " + format_duration_ns(whole_ns);
  }
  if (lane.away != 0) {
    text += "; away " + (lane.away == 1 ? "once" : format_count(lane.away) + " times");
    if (lane.last_call != nullptr) text += std::string(", last by ") + lane.last_call;
  }
  if (lane.end != nullptr) {
    text += std::string(was_open ? "; left for good: " : "none: ") + lane.end;
    if (lane.end_call != nullptr) text += std::string(", by ") + lane.end_call;
  }
  page.line(text);
}

void add_heading(Page& page, const stats::Snapshot& snapshot) {
  const stats::ProcessInfo& process = snapshot.process;
  const std::uint64_t ran_ns = ran_ns_of(snapshot);
  page.line("started " + util::format_wall_time(process.start_wall_ns) + ", ran " +
            format_duration_ns(ran_ns) + "; free mode " + process.free_mode + ", backend " +
            process.backend);
  if (modes_differ(process)) page.line(one_line(modes_in_words(process)));
  if (snapshot.lane) add_lane(page, *snapshot.lane, ran_ns);
}

// `at_peak_use`: the last cell, or nothing.
void add_memory_row(Page& page, const char* before, const DeviceSnapshot& device, Gauge gauge,
                    const std::string& at_peak_use = "") {
  const GaugeValue& value = device[gauge];
  page.row(row_label(before, label_of(gauge)),
           {signed_text(value.current, format_count), signed_text(value.current, format_bytes),
            signed_text(value.peak, format_bytes), at_peak_use});
}

// The last column is of one moment, so that it adds up, which the peaks before it do not.
void add_memory(Page& page, const DeviceSnapshot& device, const char* moment) {
  const stats::PeakUse& use = device.peak_use;
  const auto then = [&use](std::int64_t bytes) {
    return use.valid() ? signed_text(bytes, format_bytes) : std::string();
  };
  page.row("Memory",
           {std::string("bytes ") + moment, moment, "peak", use.valid() ? "at peak use" : ""});
  add_memory_row(page, "    ", device, Gauge::application_bytes, then(use.application_bytes));
  add_memory_row(page, "  + ", device, Gauge::rounding_bytes, then(use.rounding_bytes));
  add_memory_row(page, "  + ", device, Gauge::retired_bytes, then(use.retired_bytes));
  add_memory_row(page, "  + ", device, Gauge::cached_bytes, then(use.cached_bytes));
  add_memory_row(page, "  = ", device, Gauge::held_bytes, then(use.held_bytes()));
  const std::int64_t unaccounted = unaccounted_bytes(device);
  if (unaccounted != 0) {
    page.line("    ! the sum is off by " + signed_text(unaccounted, format_count) +
              " bytes: threads were still allocating, or cupool has a fault");
  }
  if (device.pool.valid) {
    if (device[Gauge::plain_bytes].peak != 0) {
      add_memory_row(page, "  - ", device, Gauge::plain_bytes, then(use.plain_bytes));
    }
    const std::int64_t slack = device.driver_slack_bytes();
    page.row(row_label("  + ", stats::kDriverSlackLabel),
             {signed_text(slack, format_count), signed_text(slack, format_bytes), "-",
              then(use.driver_slack_bytes)});
    page.row(
        row_label("  = ", stats::kPoolReservedLabel),
        {format_count(device.pool.reserved_current), format_bytes(device.pool.reserved_current),
         format_bytes(device.pool.reserved_high), then(use.reserved_bytes())});
    page.row(row_label("    ", stats::kPoolUsedLabel),
             {format_count(device.pool.used_current), format_bytes(device.pool.used_current),
              format_bytes(device.pool.used_high)});
  }
  if (device[Gauge::passthrough_bytes].peak != 0) {
    add_memory_row(page, "    ", device, Gauge::passthrough_bytes);
    add_memory_row(page, "    ", device, Gauge::device_bytes);
  }
}

void add_calls(Page& page, const DeviceSnapshot& device) {
  page.row("Calls", {"number", "share", "bytes"});
  const auto calls = [&](Counter number, Counter bytes) {
    page.row(row_label("  ", label_of(number)),
             {format_count(device[number]), "", format_bytes(device[bytes])});
  };
  const auto share = [&](const char* before, Counter counter, Counter whole) {
    const std::uint64_t part = device[counter];
    if (part == 0) return;
    page.row(row_label(before, label_of(counter)),
             {format_count(part), format_percent(part, device[whole])});
  };
  constexpr Counter mallocs = Counter::malloc_calls_total;
  calls(mallocs, Counter::malloc_requested_bytes_total);
  share("    ", Counter::served_thread_cache_total, mallocs);
  share("    ", Counter::served_shared_cache_total, mallocs);
  share("    ", Counter::served_fresh_total, mallocs);
  share("    ", Counter::served_passthrough_total, mallocs);
  share("    ", Counter::malloc_failed_total, mallocs);
  constexpr Counter frees = Counter::free_calls_total;
  calls(frees, Counter::free_bytes_total);
  const std::uint64_t unwaited = unwaited_frees(device.counters);
  page.row("    without a wait", {format_count(unwaited), format_percent(unwaited, device[frees])});
  share("      ", Counter::frees_unwaited_busy_total, frees);
  share("    ", Counter::free_waits_total, frees);
  share("      ", Counter::free_waits_sync_total, frees);
  share("      ", Counter::free_waits_host_copy_total, frees);
  share("      ", Counter::free_waits_managed_total, frees);
  share("      ", Counter::free_waits_zero_copy_total, frees);
  share("      ", Counter::free_waits_pending_limit_total, frees);
  if (device[Counter::free_waits_pending_limit_total] > 0) {
    page.row(row_label("        ", label_of(Gauge::pending_limit_bytes)),
             {"", "", signed_text(device[Gauge::pending_limit_bytes].current, format_bytes)});
  }
  share("      ", Counter::free_waits_order_total, frees);
  share("    ", Counter::free_passthrough_total, frees);
  share("    ", Counter::free_null_total, frees);
  share("    ", Counter::free_foreign_total, frees);
  share("    ", Counter::free_rejected_total, frees);
}

void add_time_row(Page& page, const std::string& label, const HistogramSummary& time) {
  if (time.count == 0) return;
  page.row(label,
           {format_duration_ns(time.p50_ns), format_duration_ns(time.p99_ns),
            format_duration_ns(time.p99_9_ns), format_duration_ns(time.max_ns),
            format_duration_ns(time.sum_ns)},
           kTimeWidth, kTimeWidth);
}

void add_times(Page& page, const DeviceSnapshot& device) {
  page.row("Time of a call", {"p50", "p99", "p99.9", "max", "all calls"}, kTimeWidth, kTimeWidth);
  add_time_row(page, "  malloc", device.malloc_time);
  add_time_row(page, "  free", device.free_time);
  if (device[Counter::free_waits_total] > 0) {
    page.row(row_label("    ", label_of(Counter::free_wait_ns_total)),
             {"", "", "", "", format_duration_ns(device[Counter::free_wait_ns_total])}, kTimeWidth,
             kTimeWidth);
  }
  add_time_row(page, "  synchronise", device.synchronize_time);
}

void add_events(Page& page, const DeviceSnapshot& device, bool at_exit) {
  const auto event = [&](Counter number, const std::string& bytes = "") {
    if (device[number] == 0) return;
    page.row(row_label("  ", label_of(number)), {format_count(device[number]), "", bytes});
  };
  page.row("Events", {"number", "", "bytes"});
  event(Counter::growth_total, format_bytes(device[Counter::growth_bytes_total]));
  event(Counter::returned_blocks_total, format_bytes(device[Counter::returned_bytes_total]));
  event(Counter::trims_total);
  event(Counter::oom_rescues_total);
  event(Counter::neighbours_asked_total);
  const std::uint64_t given = device[Counter::given_to_neighbours_bytes_total];
  if (given > 0) {
    page.row(row_label("  ", label_of(Counter::given_to_neighbours_bytes_total)),
             {"", "", format_bytes(given)});
  }
  event(Counter::fences_total);
  event(Counter::stream_waits_total);
  event(Counter::message_waits_total, format_duration_ns(device[Counter::message_wait_ns_total]));
  if (device[Counter::context_lost_bytes_total] > 0) {
    page.row(row_label("  ", label_of(Counter::context_lost_bytes_total)),
             {"", "", format_bytes(device[Counter::context_lost_bytes_total])});
  }
  const std::string live =
      at_exit ? row_label("  ", label_of(Gauge::leaked_bytes)) + ": live at exit" : "  live now";
  if (device[Gauge::leaked_blocks].current != 0)
    page.row(live, {signed_text(device[Gauge::leaked_blocks].current, format_count), "",
                    signed_text(device[Gauge::leaked_bytes].current, format_bytes)});
  event(Counter::ipc_exports_total);
  event(Counter::ipc_imports_total);
  event(Counter::own_async_malloc_calls_total);
  event(Counter::own_async_served_total);
  event(Counter::own_async_free_calls_total);
  if (device[Gauge::default_pool_idle_bytes].peak > 0) {
    page.row(row_label("    ", label_of(Gauge::default_pool_idle_bytes)) + ": most seen",
             {"", "", signed_text(device[Gauge::default_pool_idle_bytes].peak, format_bytes)});
  }
  event(Counter::managed_malloc_calls_total);
  event(Counter::array_calls_total);
  event(Counter::host_malloc_calls_total);
  event(Counter::host_served_total);
  event(Counter::host_free_waits_total,
        format_duration_ns(device[Counter::host_free_wait_ns_total]));
  if (device[Gauge::own_async_cached_bytes].current > 0) {
    page.row(row_label("  ", label_of(Gauge::own_async_cached_bytes)),
             {"", "", signed_text(device[Gauge::own_async_cached_bytes].current, format_bytes)});
  }
  if (device[Gauge::host_cached_bytes].peak > 0) {
    page.row(row_label("  ", label_of(Gauge::host_cached_bytes)) + ": at most",
             {"", "", signed_text(device[Gauge::host_cached_bytes].peak, format_bytes)});
  }
  if (device[Counter::host_lost_bytes_total] > 0) {
    page.row(row_label("  ", label_of(Counter::host_lost_bytes_total)),
             {"", "", format_bytes(device[Counter::host_lost_bytes_total])});
  }
}

// Calls of threads without a current context: cupool cannot have served them.
void add_unknown_device(Page& page, const DeviceSnapshot& device) {
  page.blank();
  page.line("Without a current context: " + std::to_string(device[Counter::malloc_calls_total]) +
            " malloc (" + std::to_string(device[Counter::malloc_failed_total]) + " failed), " +
            std::to_string(device[Counter::free_calls_total]) + " free");
}

void add_device(Page& page, const DeviceSnapshot& device, bool at_exit) {
  std::string title = "Device " + std::to_string(device.ordinal);
  if (!device.name.empty()) title += ": " + one_line(device.name);
  if (device.total_memory_bytes > 0) title += ", " + format_bytes(device.total_memory_bytes);
  page.blank();
  page.line(title);
  add_memory(page, device, at_exit ? "at exit" : "now");
  add_calls(page, device);
  add_times(page, device);
  add_events(page, device, at_exit);
}

// The defaults that are not in force.
std::string overridden(const stats::ProcessInfo& process) {
  if (!modes_differ(process)) return {};
  const bool free_mode = process.mode_reason->free_mode != process.requested_free_mode;
  const bool backend = process.mode_reason->backend != process.requested_backend;
  return std::string("; not in force as set: ") + (free_mode ? "CUPOOL_FREE_MODE" : "") +
         (free_mode && backend ? ", " : "") + (backend ? "CUPOOL_BACKEND" : "");
}

void add_settings(Page& page, const stats::Snapshot& snapshot) {
  page.blank();
  const std::uint64_t bytes = suggested_pool_bytes(snapshot);
  if (bytes > 0) {
    const std::string value = option_value(bytes);
    page.line("Suggested, from the pool's peak: CUPOOL_RELEASE_THRESHOLD=" + value +
              " CUPOOL_PREALLOC=" + value);
  }
  std::size_t defaults = 0;
  for (const stats::SettingRow& row : snapshot.process.settings) {
    if (row.is_default) {
      ++defaults;
    } else {
      page.line("Setting " + one_line(row.name) + "=" + one_line(row.value) + " (" + row.origin +
                ")");
    }
  }
  const bool all = defaults == snapshot.process.settings.size();
  page.line((all ? "All " : "The other ") + std::to_string(defaults) +
            " settings are at their defaults" + overridden(snapshot.process));
}

}  // namespace

std::string text_report(const stats::Snapshot& snapshot) {
  Page page;
  const Verdict verdict = add_verdict(page, snapshot);
  page.text(finding_lines(verdict));
  if (snapshot.observation) page.text(observe_text(snapshot));
  page.blank();
  add_heading(page, snapshot);
  for (const DeviceSnapshot& device : snapshot.devices)
    device.ordinal < 0 ? add_unknown_device(page, device)
                       : add_device(page, device, snapshot.number == 0);
  if (snapshot.devices.empty()) page.line("no device was used");
  add_leaks(page, snapshot.leaks, snapshot.number == 0);
  add_settings(page, snapshot);
  return page.take();
}

std::string text_line(const stats::Snapshot& snapshot) {
  constexpr const char* kTheWhole = "; the whole with CUPOOL_STATS_RANKS=all\n";
  const stats::ProcessInfo& process = snapshot.process;
  std::string text = "cupool: rank " + one_line(process.rank) + ", process " +
                     std::to_string(snapshot.pid) + " on " + one_line(process.host) + ": ";
  if (snapshot.observation) {
    text += conclude(snapshot).verdict;
  } else {
    std::uint64_t mallocs = 0, failed = 0, cached = 0, frees = 0, waits = 0, held = 0;
    for (const DeviceSnapshot& device : snapshot.devices) {
      mallocs += device[Counter::malloc_calls_total];
      failed += device[Counter::malloc_failed_total];
      cached +=
          device[Counter::served_thread_cache_total] + device[Counter::served_shared_cache_total];
      frees += device[Counter::free_calls_total];
      waits += device[Counter::free_waits_total];
      held += static_cast<std::uint64_t>(std::max<std::int64_t>(device[Gauge::held_bytes].peak, 0));
    }
    if (mallocs == 0) return text + verdict_of(snapshot).time + kTheWhole;
    text += format_count(mallocs) + " allocations (" + format_percent(cached, mallocs) +
            " from caches" + (failed > 0 ? ", " + format_count(failed) + " failed" : "") + "), " +
            format_count(frees) + " frees (" + format_count(waits) + " waited), at most " +
            format_bytes(held) + " held";
  }
  return text + kTheWhole;
}

}  // namespace cupool::report
