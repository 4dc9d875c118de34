// SPDX-License-Identifier: Apache-2.0
// A snapshot with figures that a reader can check by hand; the report tests share it.
#pragma once

#include "stats/snapshot.h"

namespace cupool::test {

inline stats::DeviceSnapshot fixed_device() {
  using stats::Counter;
  using stats::Gauge;
  constexpr std::int64_t mib = 1 << 20;
  stats::DeviceSnapshot device;
  device.ordinal = 0;
  device.name = "NVIDIA H200";
  device.total_memory_bytes = std::uint64_t{139} << 30;
  device[Gauge::application_bytes] = {1'000'000, 3000 * mib};
  device[Gauge::rounding_bytes] = {48'576, 12 * mib};
  device[Gauge::retired_bytes] = {3 * mib, 256 * mib};
  device[Gauge::cached_bytes] = {2044 * mib, 2048 * mib};
  device[Gauge::held_bytes] = {2048 * mib, 3072 * mib};
  device[Gauge::device_bytes] = {1'000'000, 3000 * mib};
  device[Gauge::leaked_blocks] = {2, 2};
  device[Gauge::pending_limit_bytes] = {256 << 20, 256 << 20};
  device[Gauge::leaked_bytes] = {1'000'000, 1'000'000};
  device.pool = {true, static_cast<std::uint64_t>(2080 * mib),
                 static_cast<std::uint64_t>(3090 * mib), static_cast<std::uint64_t>(2048 * mib),
                 static_cast<std::uint64_t>(3072 * mib)};
  device.peak_use.time_ns = 7'000'000'000;
  device.peak_use.application_bytes = 2800 * mib;
  device.peak_use.rounding_bytes = 10 * mib;
  device.peak_use.retired_bytes = 190 * mib;
  device.peak_use.cached_bytes = 72 * mib;
  device.peak_use.driver_slack_bytes = 16 * mib;
  device[Counter::malloc_calls_total] = 1'000'000;
  device[Counter::malloc_requested_bytes_total] = static_cast<std::uint64_t>(900'000 * mib);
  device[Counter::served_thread_cache_total] = 900'000;
  device[Counter::served_shared_cache_total] = 95'000;
  device[Counter::served_fresh_total] = 5'000;
  device[Counter::free_calls_total] = 1'000'010;
  device[Counter::free_bytes_total] = static_cast<std::uint64_t>(899'999 * mib);
  device[Counter::free_null_total] = 12;
  device[Counter::free_waits_total] = 250;
  device[Counter::free_waits_host_copy_total] = 200;
  device[Counter::free_waits_pending_limit_total] = 50;
  device[Counter::frees_unwaited_busy_total] = 700000;
  device[Counter::free_wait_ns_total] = 1'250'000'000;
  device[Counter::growth_total] = 5'000;
  device[Counter::growth_bytes_total] = static_cast<std::uint64_t>(4096 * mib);
  device[Counter::returned_blocks_total] = 100;
  device[Counter::returned_bytes_total] = static_cast<std::uint64_t>(1024 * mib);
  device[Counter::oom_rescues_total] = 1;
  device[Counter::fences_total] = 42'000;
  device[Counter::fence_queries_total] = 47'000;
  device[Counter::synchronize_calls_total] = 60;
  device.malloc_time = {
      1'000'000, 280'000'000, 3'400'000, 140,
      223,       1'791,       16'383,    {{143, 900'000}, {1'791, 99'999}, {3'407'871, 1}}};
  device.free_time = {1'000'010, 1'400'000'000, 8'400'000, 120, 191, 5'119, 114'687, {}};
  device.synchronize_time = {60,         900'000'000, 21'000'000, 14'680'063,
                             18'874'367, 20'971'519,  21'000'000, {}};
  device.requested_sizes[9] = {400'000, 200'000'000};
  device.requested_sizes[20] = {600'000, static_cast<std::uint64_t>(600'000 * mib)};
  return device;
}

inline stats::Sample fixed_sample(std::uint64_t time_ns, std::uint64_t mallocs) {
  stats::DeviceSample device;
  device.ordinal = 0;
  device.gauges[static_cast<std::size_t>(stats::Gauge::application_bytes)] = 4096;
  device.gauges[static_cast<std::size_t>(stats::Gauge::held_bytes)] = 8192;
  device.counters[static_cast<std::size_t>(stats::Counter::malloc_calls_total)] = mallocs;
  return {time_ns, {device}};
}

// What grows with the run: two threads and others, three events, a series of two samples.
inline void add_timeline(stats::Snapshot& snapshot) {
  snapshot.threads = {{4242, "train", 700'000, 1 << 30, 700'010, 200, 1'000'000'000},
                      {4250, "loader", 200'000, 1 << 20, 200'000, 50, 250'000'000}};
  snapshot.other_threads = {0, "", 100'000, 1 << 10, 100'000, 0, 0};
  snapshot.other_thread_count = 17;
  snapshot.events = {{1'000, stats::EventKind::growth, 0, 3, 6 << 20, 0},
                     {2'000'000, stats::EventKind::wait, 0, 1, 0, 8'400'000},
                     {3'000'000, stats::EventKind::trim, 0, 1, 0, 0}};
  snapshot.series.interval_ns = 100'000'000;
  snapshot.series.kept_interval_ns = 200'000'000;
  snapshot.series.samples = {fixed_sample(5, 10), fixed_sample(200'000'005, 25)};
  snapshot.series.samples[1].devices[0].has_device_memory = true;
  snapshot.series.samples[1].devices[0].device_free_bytes = 100;
  snapshot.series.samples[1].devices[0].device_total_bytes = 200;
  snapshot.series.samples[1].devices[0].pool = {true, 32 << 20, 64 << 20, 16 << 20, 48 << 20};
}

inline stats::Snapshot fixed_snapshot() {
  stats::Snapshot snapshot;
  snapshot.pid = 4242;
  snapshot.process.program_path = "/home/user/train";
  snapshot.process.argv0 = "./train";
  snapshot.process.host = "node17";
  snapshot.process.rank = "3";
  snapshot.process.library_version = "0.1.0";
  snapshot.process.start_wall_ns = 1'763'653'927'000'000'000;  // 2025-11-20 15:52:07 UTC
  snapshot.end_wall_ns = snapshot.process.start_wall_ns + 12'340'000'000;
  snapshot.process.free_mode = "sync";
  snapshot.process.backend = "pool";
  snapshot.process.settings = {
      {"CUPOOL_ENABLE", "1", "default", true},
      {"CUPOOL_BACKEND", "pool", "environment", false},
      {"CUPOOL_MAX_CACHED", "80%", "profile", false},
      {"CUPOOL_STATS", "text", "environment", true},
  };
  snapshot.devices.push_back(fixed_device());
  add_timeline(snapshot);
  return snapshot;
}

}  // namespace cupool::test
