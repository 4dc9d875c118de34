// SPDX-License-Identifier: Apache-2.0
// A small report of one process, as JSON that tests change and write to files.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/page/model.h"

namespace cli {

inline nlohmann::json example_report() {
  return nlohmann::json::parse(R"({
    "schema_version": 1, "cupool_version": "0.1.0",
    "process": {"pid": 42, "program_path": "/opt/simulate", "argv0": "simulate", "host": "node1",
                "rank": null, "start_wall_ns": 1000000000, "end_wall_ns": 3000000000},
    "snapshot_number": 0, "free_mode": "auto", "backend": "pool",
    "devices": [{
      "ordinal": 0, "name": "GPU", "total_memory_bytes": 4294967296,
      "counters": {"malloc_calls_total": 1000, "served_thread_cache_total": 700,
                   "served_shared_cache_total": 200, "served_fresh_total": 100,
                   "free_calls_total": 990, "frees_unwaited_busy_total": 400,
                   "free_waits_total": 0, "growth_total": 100},
      "gauges": {"held_bytes": {"current": 0, "peak": 104857600},
                 "retired_bytes": {"current": 0, "peak": 20971520},
                 "device_bytes": {"current": 0, "peak": 52428800},
                 "leaked_blocks": {"current": 10, "peak": 10},
                 "leaked_bytes": {"current": 4096, "peak": 4096}},
      "times": {"malloc": {"count": 1000, "sum_ns": 2000000, "max_ns": 50000, "p50_ns": 500,
                           "p90_ns": 1000, "p99_ns": 5000, "p99_9_ns": 40000}},
      "pool": {"reserved_current_bytes": 104857600, "reserved_high_bytes": 104857600,
               "used_current_bytes": 0, "used_high_bytes": 94371840},
      "driver_slack_bytes": 0, "unaccounted_bytes": 0}],
    "suggested_settings": {"CUPOOL_PREALLOC": "128M"},
    "settings": [{"name": "CUPOOL_IPC", "value": "1", "origin": "default", "is_default": true}]
  })");
}

/// Writes it to a file of `folder`; returns the file's path.
inline std::string write_report(const std::string& folder, const std::string& name,
                                const nlohmann::json& report) {
  std::string path = folder + "/" + name;
  std::ofstream(path) << report.dump();
  return path;
}

/// What the command makes of it.
inline cupool::cli::Report parsed(const nlohmann::json& report) {
  return cupool::cli::parse_report(report.dump(), "file.json");
}

}  // namespace cli
