// SPDX-License-Identifier: Apache-2.0
// Taking a snapshot, and the description of the process.
#include "stats/snapshot.h"

#include <errno.h>
#include <unistd.h>

#include <atomic>

#include "util/clock.h"
#include "util/launcher.h"
#include "util/text.h"

namespace cupool::stats {

namespace {

// The last copy that was set. A replaced one stays reachable: take() may be reading it. No lock: a
// fork could leave it held in the child.
struct KeptInfo {
  ProcessInfo info;
  const KeptInfo* previous = nullptr;
};
std::atomic<const KeptInfo*> g_info{nullptr};

std::string program_path() {
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  return length > 0 ? std::string(path, static_cast<std::size_t>(length)) : std::string();
}

DeviceSnapshot snapshot_of(const DeviceStats& stats, int ordinal) {
  DeviceSnapshot snapshot;
  snapshot.ordinal = ordinal;
  snapshot.name = stats.device_name();
  snapshot.total_memory_bytes = stats.total_memory_bytes();
  for (std::size_t i = 0; i < kCounters; ++i) {
    snapshot.counters[i] = stats.value(static_cast<Counter>(i));
  }
  for (std::size_t i = 0; i < kGauges; ++i) {
    snapshot.gauges[i] = stats.value(static_cast<Gauge>(i));
  }
  snapshot.malloc_time = stats.call_times().malloc.summary();
  snapshot.free_time = stats.call_times().free.summary();
  snapshot.synchronize_time = stats.call_times().synchronize.summary();
  snapshot.pool = stats.pool_figures();
  snapshot.peak_use = peak_use_of(ordinal).read();
  snapshot.requested_sizes = stats.requested_sizes().read();
  return snapshot;
}

}  // namespace

ProcessInfo this_process() {
  ProcessInfo info;
  info.program_path = program_path();
  if (program_invocation_name != nullptr) info.argv0 = program_invocation_name;
  info.host = util::host_name();
  info.rank = util::launcher_rank();
  util::parse_uint64(util::launcher_ranks(), &info.ranks);
  info.job = util::launcher_job();
  info.library_version = CUPOOL_VERSION;
  info.start_wall_ns = util::wall_ns() - since_start_ns();
  return info;
}

void set_process_info(const ProcessInfo& info) noexcept {
  try {
    auto* kept = new KeptInfo{info, nullptr};
    const KeptInfo* current = g_info.load(std::memory_order_acquire);
    do {
      kept->previous = current;
    } while (!g_info.compare_exchange_weak(current, kept, std::memory_order_acq_rel));
  } catch (...) {
    // No memory: the snapshot collects what it can by itself.
  }
}

std::int64_t DeviceSnapshot::driver_slack_bytes() const noexcept {
  if (!pool.valid) return 0;
  const std::int64_t of_pools =
      (*this)[Gauge::held_bytes].current - (*this)[Gauge::plain_bytes].current;
  return static_cast<std::int64_t>(pool.reserved_current) - of_pools;
}

bool Snapshot::is_worth_a_report() const noexcept {
  for (const DeviceSnapshot& device : devices) {
    if (device[Counter::malloc_calls_total] > 0 ||
        device[Counter::own_async_malloc_calls_total] > 0 ||
        device[Counter::managed_malloc_calls_total] > 0 || device[Counter::array_calls_total] > 0 ||
        device[Counter::host_served_total] > 0) {
      return true;
    }
  }
  return false;
}

Snapshot take() {
  Snapshot snapshot;
  snapshot.pid = static_cast<int>(::getpid());
  const KeptInfo* kept = g_info.load(std::memory_order_acquire);
  snapshot.process = kept != nullptr ? kept->info : this_process();
  for (int ordinal = -1; ordinal < kMaxDevices; ++ordinal) {
    const DeviceStats& stats = device(ordinal);
    if (stats.active()) snapshot.devices.push_back(snapshot_of(stats, ordinal));
  }
  snapshot.threads = thread_snapshots(&snapshot.other_threads, &snapshot.other_thread_count);
  snapshot.events = events();
  snapshot.end_wall_ns = util::wall_ns();
  return snapshot;
}

}  // namespace cupool::stats
