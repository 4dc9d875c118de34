// SPDX-License-Identifier: Apache-2.0
// The words of the verdict. No duration is claimed for stalls avoided: the first of several frees
// in a row would have waited for all of them, and no report has the remaining time of the GPU.
#include "report/verdict.h"

#include <algorithm>
#include <utility>

#include "report/derived.h"
#include "report/observe.h"
#include "stats/labels.h"
#include "stats/pool_growth.h"
#include "util/text.h"

namespace cupool::report {

using stats::Counter;
using stats::Gauge;
using util::format_bytes;
using util::format_count;
using util::format_duration_ns;

namespace {

// Waits are a trouble from one free in this many on.
constexpr std::uint64_t kWaitsToLookAt = 100;
// Less idle memory than this, or than a tenth of the device, is not worth a word.
constexpr std::uint64_t kIdleToLookAt = std::uint64_t{64} << 20;
// The first allocation after so many frees starts the pools.
constexpr std::uint64_t kFreesBeforePools = 3;
// So many calls that the driver did not get are a gain, though no free avoided a stall.
constexpr std::uint64_t kCallsToMeasure = 1000;
constexpr const char* kCureOfFailures =
    "cupool compare ./program shows whether that happens without cupool too";
constexpr const char* kCureOfRefusals =
    "CUPOOL_TRACE=run.csv records all calls, the refused frees among them";
constexpr const char* kNothing = "nothing to do";

std::string number_of(std::uint64_t number, const char* one, const char* many) {
  return format_count(number) + " " + (number == 1 ? one : many);
}

std::uint64_t least(std::uint64_t a, std::uint64_t b) {
  return a - std::min(a, b);
}

std::uint64_t bytes_of(std::int64_t value) {
  return value > 0 ? static_cast<std::uint64_t>(value) : 0;
}

DevicePeaks peaks_of(const stats::DeviceSnapshot& device) {
  return {bytes_of(device[Gauge::held_bytes].peak),
          device.pool.valid ? device.pool.reserved_high : 0,
          bytes_of(device[Gauge::device_bytes].peak),
          bytes_of(device[Gauge::passthrough_bytes].current)};
}

bool served_none(const RunFigures& run) {
  const std::uint64_t others =
      run[Counter::served_passthrough_total] + run[Counter::malloc_failed_total];
  return run[Counter::malloc_calls_total] > 0 && others >= run[Counter::malloc_calls_total];
}

bool all_failed(const RunFigures& run) {
  return run[Counter::malloc_calls_total] > 0 &&
         run[Counter::malloc_failed_total] >= run[Counter::malloc_calls_total];
}

bool waits_often(const RunFigures& run) {
  return run[Counter::free_waits_total] > 0 &&
         run[Counter::free_waits_total] * kWaitsToLookAt >= run[Counter::free_calls_total];
}

// Why the driver served everything, and what to do.
std::string why_none(const RunFigures& run) {
  const std::uint64_t frees = least(run[Counter::free_calls_total], run[Counter::free_null_total]);
  if (run.rdma) return run.rdma_library + " is loaded";
  if (frees < kFreesBeforePools * run.processes) {
    return "the program freed hardly anything, and there is nothing to reuse";
  }
  if (!run.max_block.empty()) {
    return "they were larger than CUPOOL_MAX_BLOCK=" + run.max_block +
           ", or came before the pools had started";
  }
  return "they came before the pools had started or from libraries that are left to the driver, or "
         "a warning says what kept cupool away";
}
std::string cure_of_none(const RunFigures& run) {
  const std::uint64_t frees = least(run[Counter::free_calls_total], run[Counter::free_null_total]);
  if (!run.rdma && frees < kFreesBeforePools * run.processes) {
    return run[Counter::host_served_total] > 0 || run[Counter::own_async_malloc_calls_total] > 0
               ? "nothing to do"
               : "nothing to do: a program that allocates once has nothing to gain";
  }
  if (!run.rdma && !run.max_block.empty()) {
    return "CUPOOL_MAX_BLOCK=100%, the default, has cupool serve every size";
  }
  return "cupool doctor ./program names obstacles; CUPOOL_POOL_START=first serves from the start";
}

// What the program's own stream-ordered allocations have of cupool, which no figure tells.
std::string own_async_in_words(const RunFigures& run) {
  if (const std::uint64_t served = run[Counter::own_async_served_total]) {
    return format_count(served) + " of " +
           format_count(run[Counter::own_async_malloc_calls_total]) +
           " cudaMallocAsync from the caches of streams (CUPOOL_ASYNC=serve); what that saves is "
           "not counted";
  }
  const std::string calls =
      format_count(run[Counter::own_async_malloc_calls_total]) + " cudaMallocAsync by the driver";
  if (!run.keeps_default_pool) return calls + ", as without cupool (CUPOOL_ASYNC=off)";
  return calls +
         ", whose default pool may keep freed memory across synchronisations (CUPOOL_ASYNC); what "
         "that saves is not counted";
}

std::string all_of_them(std::uint64_t number) {
  return number == 1 ? "the only allocation" : "all " + format_count(number) + " allocations";
}

// Of device memory, where cupool served none.
std::string time_of_none(const RunFigures& run) {
  const std::uint64_t calls = run[Counter::malloc_calls_total];
  const bool has_own = run[Counter::own_async_malloc_calls_total] > 0;
  if (calls == 0 && has_own) {
    return (run.keeps_default_pool ? "" : "nothing saved: ") + own_async_in_words(run);
  }
  if (calls == 0) return "nothing saved: no allocation to serve";
  std::string text = "nothing saved: ";
  if (all_failed(run)) {
    text += all_of_them(calls) + " failed";
  } else {
    text += "the driver served " + all_of_them(least(calls, run[Counter::malloc_failed_total])) +
            ", since " + why_none(run);
  }
  return has_own ? text + "; " + own_async_in_words(run) : text;
}

std::string time_of_device_memory(const RunFigures& run) {
  if (run[Counter::malloc_calls_total] == 0 || served_none(run)) return time_of_none(run);
  const std::uint64_t avoided = run[Counter::frees_unwaited_busy_total];
  const std::uint64_t frees = run[Counter::free_calls_total];
  const std::uint64_t waits = run[Counter::free_waits_total];
  std::string text = "at least " + number_of(avoided, "stall", "stalls") + " avoided in " +
                     number_of(frees, "free", "frees");
  if (avoided == 0) {
    text = run.counts_stalls ? "no free was seen to avoid a stall"
                             : "stalls avoided are not counted (CUPOOL_FREE_MODE=ordered)";
  }
  if (waits > 0) {
    text += "; " + format_count(waits) + " waited, " +
            format_duration_ns(run[Counter::free_wait_ns_total]) + " in all";
  }
  return text + "; driver calls replaced: " + format_count(run.replaced_mallocs()) +
         " cudaMalloc, " + format_count(run.replaced_frees()) + " cudaFree";
}

std::string time_of(const RunFigures& run) {
  const std::uint64_t served = run[Counter::host_served_total];
  if (served == 0) return time_of_device_memory(run);
  const std::string text = format_count(served) + " of " +
                           number_of(run[Counter::host_malloc_calls_total],
                                     "page-locked allocation", "page-locked allocations") +
                           " from the cache; ";
  if (run[Counter::malloc_calls_total] == 0 && run[Counter::own_async_malloc_calls_total] == 0) {
    return text + "no cudaMalloc to serve";
  }
  return text + "device memory: " + time_of_device_memory(run);
}

const char* when(const RunFigures& run) {
  return run.at_exit ? " idle at exit" : " idle now";
}

std::string device_memory_of(const RunFigures& run) {
  if (run.peak_bytes == 0 && run.program_peak_bytes == 0) return "none held by cupool's pools";
  std::string text = "peak " + format_bytes(run.peak_bytes) + " with cupool";
  if (!run.device.empty()) text += " on " + run.device;
  text += ", the program's own peak " + format_bytes(run.program_peak_bytes);
  if (run.idle_bytes > 0) text += "; " + format_bytes(run.idle_bytes) + when(run);
  return text;
}

std::string memory_of(const RunFigures& run) {
  std::string text = device_memory_of(run);
  if (run[Counter::host_served_total] == 0 || run.host_peak_bytes == 0) return text;
  text += "; page-locked: peak " + format_bytes(run.host_peak_bytes) + " with cupool";
  if (run.host_idle_bytes > 0) text += ", " + format_bytes(run.host_idle_bytes) + when(run);
  return text;
}

// What to do about the waits of frees for the most frequent reason.
std::string cure_of_waits(const RunFigures& run) {
  if (run.rdma) return "nothing to do: other hardware uses the memory, so frees wait";
  const auto most = std::max_element(std::begin(kWaitReasons), std::end(kWaitReasons),
                                     [&run](Counter a, Counter b) { return run[a] < run[b]; });
  switch (*most) {
    case Counter::free_waits_sync_total:
      return "CUPOOL_FREE_MODE=auto waits only where a program could notice";
    case Counter::free_waits_host_copy_total:
      return "cupool compare --free-mode ordered ./program, if no free is relied on to end a copy";
    case Counter::free_waits_managed_total:
      return "free managed memory before the loop, or cupool compare --free-mode ordered ./program";
    case Counter::free_waits_zero_copy_total:
      return "cupool compare --free-mode ordered ./program, if no free is relied on to end kernels";
    case Counter::free_waits_pending_limit_total:
      return run.suggested_pending_bytes == 0
                 ? "nothing to do: the limit rises by itself, or is an eighth of the device"
                 : "CUPOOL_MAX_PENDING=" + option_value(run.suggested_pending_bytes) +
                       " where there is memory to spare";
    default:
      return "CUPOOL_FREE_MODE=ordered, if the program orders its streams itself";
  }
}

std::string leaks_cure(const RunFigures& run, std::uint64_t blocks) {
  const std::string whose = blocks == 1 ? "its call site" : "their call sites";
  return run.lists_leaks ? whose + (blocks == 1 ? " is listed" : " are listed")
                         : "cupool run --leaks 1 ./program lists " + whose;
}

std::string leaks_in_words(std::uint64_t blocks, std::uint64_t bytes, const char* kind) {
  return number_of(blocks, "block", "blocks") + " with " + format_bytes(bytes) + kind +
         (blocks == 1 ? " was never freed" : " were never freed");
}

bool idles_much(const RunFigures& run) {
  return run.idle_bytes >= kIdleToLookAt && run.idle_bytes * 10 >= run.device_bytes &&
         run.device_bytes > 0;
}

// A smaller cache would leave the memory idle in the driver's pool, which keeps all by default.
std::string cure_of_idle(const RunFigures& run) {
  const bool is_default_or_never = run.decay.find_first_of("123456789") == std::string::npos;
  const std::string span = is_default_or_never ? "CUPOOL_DECAY_MS=500"  // a tenth of the default
                                               : "a shorter CUPOOL_DECAY_MS than " + run.decay;
  return span + " gives idle memory back sooner";
}

std::vector<Verdict::Finding> findings_of(const RunFigures& run) {
  std::vector<Verdict::Finding> found;
  const auto add = [&found](std::string what, const std::string& cure) {
    found.push_back({std::move(what), cure});
  };
  const std::uint64_t waits = run[Counter::free_waits_total];
  if (waits > 0 && !served_none(run)) {
    add(number_of(waits, "free", "frees") + " waited for the GPU (" + wait_reasons_in_words(run) +
            ")",
        cure_of_waits(run));
  }
  const std::uint64_t host_waits = run[Counter::host_free_waits_total];
  if (host_waits > 0) {
    add(number_of(host_waits, "free", "frees") + " of page-locked memory waited for the GPU, " +
            format_duration_ns(run[Counter::host_free_wait_ns_total]) + " in all",
        "nothing to do: the driver's own free of such memory waits each time");
  }
  if (run[Counter::malloc_failed_total] > 0) {
    add(number_of(run[Counter::malloc_failed_total], "allocation", "allocations") + " failed",
        kCureOfFailures);
  }
  if (run[Counter::oom_rescues_total] > 0) {
    add(number_of(run[Counter::oom_rescues_total], "out-of-memory error was",
                  "out-of-memory errors were") +
            " averted by giving idle memory back",
        cure_of_idle(run));
  }
  if (run[Counter::free_rejected_total] > 0) {
    add(number_of(run[Counter::free_rejected_total], "free was", "frees were") +
            " refused (a double free, or a pointer into a block)",
        kCureOfRefusals);
  }
  if (run.leaked_blocks > 0 && run.at_exit) {
    add(leaks_in_words(run.leaked_blocks, run.leaked_bytes, ""),
        leaks_cure(run, run.leaked_blocks));
  }
  if (run.other_leaked_blocks > 0 && run.at_exit) {
    add(leaks_in_words(run.other_leaked_blocks, run.other_leaked_bytes,
                       " of page-locked, managed or stream-ordered memory"),
        leaks_cure(run, run.other_leaked_blocks));
  }
  return found;
}

bool asks_for_something(const Verdict::Finding& finding) {
  return finding.cure.rfind(kNothing, 0) != 0;
}

bool has_leaks(const RunFigures& run) {
  return run.at_exit && (run.leaked_blocks > 0 || run.other_leaked_blocks > 0);
}

std::string where_leaks_are(const RunFigures& run) {
  return run.lists_leaks ? "the call sites of what was never freed are listed"
                         : "cupool run --leaks 1 ./program lists what was never freed";
}

// What `else_` advises, beside what was found: with a finding that asks for something, there is not
// "nothing to do".
std::string beside(const std::vector<Verdict::Finding>& findings, const RunFigures& run,
                   const std::string& else_) {
  if (run[Counter::malloc_failed_total] > 0) return kCureOfFailures;
  if (run[Counter::free_rejected_total] > 0) return kCureOfRefusals;
  if (std::none_of(findings.begin(), findings.end(), asks_for_something)) {
    return else_.empty() ? kNothing : std::string(kNothing) + "; " + else_;
  }
  if (!has_leaks(run)) return else_.empty() ? findings.front().cure : else_;
  return (else_.empty() ? "" : else_ + "; ") + where_leaks_are(run);
}

std::string next_of(const RunFigures& run, const std::vector<Verdict::Finding>& findings) {
  constexpr const char* kMeasure = "cupool compare ./program measures the gain";
  if (run[Counter::malloc_calls_total] == 0) {
    const bool has_own = run[Counter::own_async_malloc_calls_total] > 0;
    if (has_own && !run.keeps_default_pool) {
      return "CUPOOL_ASYNC=threshold lets the default pool keep freed memory across "
             "synchronisations";
    }
    return beside(findings, run, has_own || run[Counter::host_served_total] > 0 ? kMeasure : "");
  }
  if (all_failed(run)) return kCureOfFailures;
  if (served_none(run)) {
    const std::string cure = cure_of_none(run);
    return cure.rfind(kNothing, 0) == 0 && has_leaks(run) ? where_leaks_are(run) : cure;
  }
  if (run[Counter::oom_rescues_total] > 0) {
    return cure_of_idle(run) + ": the device was full";
  }
  if (waits_often(run)) return cure_of_waits(run);
  if (idles_much(run)) return cure_of_idle(run);
  if (run[Counter::frees_unwaited_busy_total] == 0 && run.counts_stalls &&
      run.replaced_mallocs() + run.replaced_frees() < kCallsToMeasure) {
    return beside(findings, run,
                  "cupool observe ./program estimates whether cupool is worth it here");
  }
  return beside(findings, run, kMeasure);
}

}  // namespace

std::uint64_t RunFigures::from_caches() const {
  return (*this)[Counter::served_thread_cache_total] + (*this)[Counter::served_shared_cache_total];
}

std::uint64_t RunFigures::unwaited() const {
  return unwaited_frees(counters);
}

std::uint64_t RunFigures::replaced_frees() const {
  return unwaited() + (*this)[Counter::free_waits_total];
}

void RunFigures::note_setting(const std::string& name, const std::string& value) {
  if (name == "CUPOOL_MAX_BLOCK") max_block = util::printable(value);
  if (name == "CUPOOL_DECAY_MS") decay = util::printable(value);
  if (name == "CUPOOL_ASYNC") keeps_default_pool = value != "off";
}

std::string wait_reasons_in_words(const RunFigures& run) {
  std::vector<Counter> reasons(std::begin(kWaitReasons), std::end(kWaitReasons));
  std::stable_sort(reasons.begin(), reasons.end(),
                   [&run](Counter a, Counter b) { return run[a] > run[b]; });
  std::string text;
  for (const Counter reason : reasons) {
    if (run[reason] == 0) break;
    text += (text.empty() ? "" : ", ") + format_count(run[reason]) + " " +
            std::string(stats::label_of(reason));
  }
  return text;
}

std::uint64_t suggested_pending_bytes(std::uint64_t retired_peak, std::uint64_t device_bytes) {
  using stats::kPoolGrowthStep;
  std::uint64_t pending = stats::in_growth_steps(2 * retired_peak);
  if (device_bytes > 0) {
    const std::uint64_t eighth = device_bytes / 8 / kPoolGrowthStep * kPoolGrowthStep;
    pending = std::min(pending, std::max<std::uint64_t>(eighth, kPoolGrowthStep));
  }
  return pending > retired_peak ? pending : 0;
}

Verdict verdict_of(const RunFigures& run) {
  std::vector<Verdict::Finding> findings = findings_of(run);
  std::string next = next_of(run, findings);
  return {time_of(run), memory_of(run), std::move(next), std::move(findings)};
}

RunFigures run_figures_of(const stats::Snapshot& snapshot) {
  RunFigures run;
  const stats::ProcessInfo& process = snapshot.process;
  run.at_exit = snapshot.number == 0;
  run.lists_leaks = snapshot.leaks.one_in != 0;
  for (const stats::LeakSite& site : snapshot.leaks.sites) {
    if (std::string_view(site.kind) == "device") continue;
    run.other_leaked_blocks += site.blocks;
    run.other_leaked_bytes += site.bytes;
  }
  if (process.mode_reason && !process.mode_reason->library.empty()) {
    run.rdma = true;
    run.rdma_library = process.mode_reason->library;
  }
  run.counts_stalls = process.free_mode != "ordered";
  for (const stats::SettingRow& row : process.settings) {
    if (!row.is_default) run.note_setting(row.name, row.value);
  }
  for (const stats::DeviceSnapshot& device : snapshot.devices) {
    for (std::size_t i = 0; i < run.counters.size(); ++i) run.counters[i] += device.counters[i];
    run.leaked_blocks += bytes_of(device[Gauge::leaked_blocks].current);
    run.leaked_bytes += bytes_of(device[Gauge::leaked_bytes].current);
    run.host_peak_bytes += bytes_of(device[Gauge::host_held_bytes].peak);
    run.host_idle_bytes += bytes_of(device[Gauge::host_cached_bytes].current);
    if (device[Counter::free_waits_pending_limit_total] > 0) {
      run.suggested_pending_bytes =
          std::max(run.suggested_pending_bytes,
                   suggested_pending_bytes(bytes_of(device[Gauge::retired_bytes].peak),
                                           device.total_memory_bytes));
    }
    const DevicePeaks peaks = peaks_of(device);
    const std::uint64_t peak = peak_bytes(peaks);
    if (peak <= run.peak_bytes) continue;  // of equal ones the first, as in `cupool report`
    run.peak_bytes = peak;
    run.program_peak_bytes = peaks.own;
    run.idle_bytes =
        bytes_of(device[Gauge::cached_bytes].current) + bytes_of(device.driver_slack_bytes());
    run.device_bytes = device.total_memory_bytes;
    if (snapshot.devices.size() > 1) run.device = "device " + std::to_string(device.ordinal);
  }
  return run;
}

Verdict verdict_of(const stats::Snapshot& snapshot) {
  if (!snapshot.observation) return verdict_of(run_figures_of(snapshot));
  return observed_verdict(snapshot);
}

std::string wrapped(const std::string& before, const std::string& text, std::size_t width) {
  std::string lines = before;
  std::size_t used = before.size();
  bool is_first = true;  // of its line
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::size_t length = end - begin;
    if (length > 0) {
      if (!is_first && used + 1 + length > width) {
        lines += "\n" + std::string(before.size(), ' ');
        used = before.size();
        is_first = true;
      }
      if (!is_first) lines += ' ';
      lines += text.substr(begin, length);
      used += length + (is_first ? 0 : 1);
      is_first = false;
    }
    begin = end + 1;
  }
  return lines + "\n";
}

std::string verdict_lines(const Verdict& verdict, const char* indent) {
  const std::string before = indent;
  return wrapped(before + "Time    ", verdict.time) + wrapped(before + "Memory  ", verdict.memory) +
         wrapped(before + "Next    ", verdict.next);
}

std::string finding_lines(const Verdict& verdict) {
  std::string lines;
  for (const Verdict::Finding& finding : verdict.findings) {
    lines += wrapped("  - ", finding.what + ":") + wrapped("    ", finding.cure);
  }
  return lines;
}

}  // namespace cupool::report
