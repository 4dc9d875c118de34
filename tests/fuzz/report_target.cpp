// SPDX-License-Identifier: Apache-2.0
// Reports as the command reads them, and everything that it makes of them.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/page/difference.h"
#include "cli/page/html.h"
#include "cli/page/model.h"
#include "cli/page/sites.h"
#include "cli/page/text.h"
#include "target.h"

namespace fuzz {
namespace {

// Every member that the reader knows, with values that occur.
const char kWhole[] = R"({
"schema_version": 1, "cupool_version": "0.1.0",
"process": {"pid": 42, "program_path": "/opt/simulate", "argv0": "simulate", "host": "node1", "rank": "3",
 "ranks": 4, "start_wall_ns": 1000000000, "end_wall_ns": 3000000000},
"snapshot_number": 0, "free_mode": "auto", "backend": "pool",
"requested": {"free_mode": "auto", "backend": "auto"},
"mode_reason": {"text": "UCX is there", "library": "libucp.so.0", "free_mode": "sync", "backend": "malloc"},
"devices": [{"ordinal": 0, "name": "GPU", "total_memory_bytes": 4294967296,
 "counters": {"malloc_calls_total": 1000, "served_thread_cache_total": 700, "served_shared_cache_total": 200,
  "served_fresh_total": 100, "free_calls_total": 990, "frees_unwaited_busy_total": 400, "free_waits_total": 9,
  "growth_total": 100},
 "gauges": {"held_bytes": {"current": 5, "peak": 104857600}, "retired_bytes": {"current": 0, "peak": 20971520},
  "device_bytes": {"current": 0, "peak": 52428800}, "leaked_blocks": {"current": 10, "peak": 10},
  "leaked_bytes": {"current": 4096, "peak": 4096}, "application_bytes": {"current": 1, "peak": 99}},
 "times": {"malloc": {"count": 1000, "sum_ns": 2000000, "max_ns": 50000, "p50_ns": 500, "p90_ns": 1000,
   "p99_ns": 5000, "p99_9_ns": 40000,
   "buckets": [{"upper_bound_ns": 1000, "count": 900}, {"upper_bound_ns": 60000, "count": 100}]},
  "free": {"count": 9, "sum_ns": 900000, "max_ns": 500000}, "synchronize": {"count": 1, "sum_ns": 5}},
 "requested_sizes": [{"upper_bound_bytes": 512, "count": 3}, {"upper_bound_bytes": 1048576, "count": 7}],
 "peak_use": {"taken_bytes": 52428800},
 "pool": {"reserved_current_bytes": 104857600, "reserved_high_bytes": 104857600, "used_current_bytes": 0,
  "used_high_bytes": 94371840}, "driver_slack_bytes": 0, "unaccounted_bytes": 0}],
"suggested_settings": {"CUPOOL_PREALLOC": "128M"},
"settings": [{"name": "CUPOOL_IPC", "value": "1", "origin": "default", "is_default": true}],
"series": {"samples": [
 {"time_ns": 1000000000, "devices": [{"ordinal": 0, "application_bytes": 5, "held_bytes": 9, "retired_bytes": 2,
   "device_total_bytes": 100, "device_free_bytes": 60}]},
 {"time_ns": 2000000000, "devices": [{"ordinal": 0, "application_bytes": 7, "held_bytes": 9, "retired_bytes": 0,
   "device_total_bytes": 100, "device_free_bytes": 50}]}]},
"events": [{"time_ns": 1500000000, "kind": "wait", "device": 0, "count": 2, "bytes": 77, "duration_ns": 900},
 {"time_ns": 1600000000, "kind": "out_of_memory", "device": 0, "count": 1, "bytes": 8}],
"threads": [{"tid": 43, "name": "worker", "malloc_calls_total": 500, "free_calls_total": 400}],
"other_threads": {"threads": 3, "malloc_calls_total": 20},
"leaks": {"sampled_one_in": 64, "modules": [{"path": "/opt/simulate", "build_id": null}],
 "sites": [{"blocks": 10, "bytes": 4096,
  "frames": [{"module": "/opt/simulate", "symbol": "solve", "offset": 16, "module_index": 0},
             {"module": "/opt/simulate", "offset": 9}]}]},
"sites": {"interval_bytes": 524288, "unfollowed_samples": 2, "lost_samples": 1,
 "modules": [{"path": "/opt/simulate", "build_id": "00112233445566778899aabbccddeeff00112233"},
  {"path": "/opt/libwork.so", "build_id": null}],
 "frames": [{"module": 0, "offset": 16}, {"module": 1, "offset": 32}, {"module": null, "offset": 48},
  {"function": "train;step", "file": "/opt/train.py", "line": 7}],
 "sites": [{"samples": 9, "calls": 6000, "bytes": 6000000, "live_calls": 1, "live_bytes": 1000, "peak_bytes": 9,
   "temporary_calls": 5000, "freed_calls": 5999, "waited_calls": 700, "frames": [0, 3, 2]},
  {"samples": 3, "calls": 2000, "bytes": 2000000, "frames": [1, 3, 2]},
  {"samples": 1, "calls": 1000, "bytes": 1000000, "frames": [0, 3, 2]}],
 "others": {"samples": 1, "calls": 10, "bytes": 10000}}
})";

const char kObserved[] = R"({
"schema_version": 1, "cupool_version": "0.1.0", "process": {"pid": 7, "rank": null, "program_path": "/<script>'&\"<img src=x>", "host": "<script>"}, "snapshot_number": 3,
"devices": [{"ordinal": 1, "counters": {"malloc_calls_total": 1, "free_calls_total": 1}}],
"observe": {"malloc_ns": 100, "free_ns": 200, "verdict": "yes", "sentences": ["a"], "assumptions": ["b"]}
})";

cupool::cli::Report example() {
  return cupool::cli::parse_report(kWhole, "whole.json");
}

bool has(const std::string& text, const char* what) {
  return text.find(what) != std::string::npos;
}

std::uint64_t sum_of_lines(const std::string& stacks) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < stacks.size();) {
    const std::size_t end = stacks.find('\n', at);
    require(end != std::string::npos, "each folded stack is a line");
    const std::size_t space = stacks.rfind(' ', end);
    require(space != std::string::npos && space > at, "a folded stack has frames and a value");
    sum += std::stoull(stacks.substr(space + 1, end - space - 1));
    at = end + 1;
  }
  return sum;
}

void check_sites(cupool::cli::SitesReport sites) {
  using namespace cupool::cli;
  const std::string text = sites_text(sites);
  require(text.empty() == sites.sites.empty(), "call sites have a text");
  require(printable_text(text).size() == text.size(), "a name brings no control characters");
  const std::uint64_t bytes = sum_of_lines(collapsed_stacks(sites, "bytes"));
  const std::string file = speedscope_file(sites, "program");
  require(nlohmann::json::accept(file), "a file of speedscope is JSON");
  merge_sites(&sites);
  require(sum_of_lines(collapsed_stacks(sites, "bytes")) == bytes, "what is merged adds up");
  sites_text(sites);
}

void check_page(const std::string& page, const std::string& input) {
  require(!has(page, "<script") && !has(page, "<img"), "a report brings nothing that runs");
  require(!has(page, "{{") || has(input, "{{"), "no mark of the page is left");
  if (has(input, "nan") || has(input, "inf")) return;
  for (const char* const number :
       {"=\"nan", "=\"-nan", "=\"inf", "=\"-inf", ",nan", ",-nan", ",inf"}) {
    require(!has(page, number), "a chart has numbers");
  }
}

}  // namespace

void run_report(const std::string& input) {
  try {
    const cupool::cli::Report report = cupool::cli::parse_report(input, "file.json");
    cupool::cli::Report other = example();
    const std::string text = cupool::cli::story_text({report});
    require(cupool::cli::printable_text(text).size() == text.size() && !text.empty(),
            "a report has a text");
    cupool::cli::story_text({report, other, report, other});
    const std::string leaks = cupool::cli::leaks_text({report, other});
    require(cupool::cli::printable_text(leaks).size() == leaks.size(),
            "a place brings no control characters");
    check_sites(report.sites);
    check_page(cupool::cli::html_page({report}), input);
    check_page(cupool::cli::html_page({report, other, report, other}), input);
    cupool::cli::difference_text(cupool::cli::difference_of({report}, {other}));
    cupool::cli::difference_text(cupool::cli::difference_of({other}, {report}));
    require(cupool::cli::difference_of({report}, {report}).groups.empty(),
            "a report does not differ from itself");
    check_page(cupool::cli::difference_page({report}, {other}), input);
  } catch (const cupool::cli::ReportError&) {
  }
}

std::vector<std::string> seeds_of_report() {
  cupool::cli::parse_report(kObserved, "observed.json");  // throws if it is none
  return {kWhole, kObserved};
}

}  // namespace fuzz
