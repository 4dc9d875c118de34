// SPDX-License-Identifier: Apache-2.0
// The devices' figures, in zero-initialised static storage: untouched pages cost nothing.
#include "stats/device_stats.h"

#include <algorithm>
#include <cstring>

#include "stats/peak_use.h"
#include "stats/thread_figures.h"
#include "stats/timeline.h"

namespace cupool::stats {

namespace {

// The last entry is for unknown ordinals.
DeviceStats g_devices[kMaxDevices + 1];

}  // namespace

DeviceStats& device(int ordinal) noexcept {
  const bool known = ordinal >= 0 && ordinal < kMaxDevices;
  return g_devices[known ? ordinal : kMaxDevices];
}

int ordinal_of(const DeviceStats& stats) noexcept {
  const auto index = &stats - g_devices;
  return index >= 0 && index < kMaxDevices ? static_cast<int>(index) : -1;
}

void reset_after_fork() noexcept {
  for (DeviceStats& each : g_devices) each.reset();
  reset_peak_uses();
  reset_threads();
  reset_timeline();
}

void DeviceStats::set_pool_figures(const PoolFigures& figures) noexcept {
  pool_.reserved_current.store(figures.reserved_current, std::memory_order_relaxed);
  pool_.reserved_high.store(figures.reserved_high, std::memory_order_relaxed);
  pool_.used_current.store(figures.used_current, std::memory_order_relaxed);
  pool_.used_high.store(figures.used_high, std::memory_order_relaxed);
  pool_.valid.store(figures.valid, std::memory_order_release);
}

PoolFigures DeviceStats::pool_figures() const noexcept {
  PoolFigures figures;
  figures.valid = pool_.valid.load(std::memory_order_acquire);
  figures.reserved_current = pool_.reserved_current.load(std::memory_order_relaxed);
  figures.reserved_high = pool_.reserved_high.load(std::memory_order_relaxed);
  figures.used_current = pool_.used_current.load(std::memory_order_relaxed);
  figures.used_high = pool_.used_high.load(std::memory_order_relaxed);
  return figures;
}

void DeviceStats::set_device_info(const char* name, std::uint64_t total_memory_bytes) noexcept {
  int expected = info_unset;
  if (!info_state_.compare_exchange_strong(expected, info_being_written,
                                           std::memory_order_relaxed)) {
    return;
  }
  if (name != nullptr) {
    const std::size_t length = std::min(std::strlen(name), sizeof name_ - 1);
    std::memcpy(name_, name, length);
    name_[length] = '\0';
  }
  total_memory_bytes_ = total_memory_bytes;
  info_state_.store(info_set, std::memory_order_release);
}

const char* DeviceStats::device_name() const noexcept {
  return info_state_.load(std::memory_order_acquire) == info_set ? name_ : "";
}

std::uint64_t DeviceStats::total_memory_bytes() const noexcept {
  return info_state_.load(std::memory_order_acquire) == info_set ? total_memory_bytes_ : 0;
}

bool DeviceStats::active() const noexcept {
  for (const auto& counter : counters_) {
    if (counter.load(std::memory_order_relaxed) != 0) return true;
  }
  for (const GaugeCell& cell : gauges_) {
    if (cell.current.load(std::memory_order_relaxed) != 0) return true;
    if (cell.peak.load(std::memory_order_relaxed) != 0) return true;
  }
  return call_times_.malloc.max() != 0 || call_times_.free.max() != 0 ||
         call_times_.synchronize.max() != 0 || pool_.valid.load(std::memory_order_relaxed);
}

void DeviceStats::reset() noexcept {
  // A thread of the parent may have been setting the name; the child can set it again.
  if (info_state_.load(std::memory_order_relaxed) != info_unset) {
    info_state_.store(info_unset, std::memory_order_relaxed);
  }
  if (unused_stream_ordered.load(std::memory_order_relaxed) != 0) {
    unused_stream_ordered.store(0, std::memory_order_relaxed);
  }
  if (!active()) return;  // leave the pages of unused devices untouched
  for (auto& counter : counters_) counter.store(0, std::memory_order_relaxed);
  for (GaugeCell& cell : gauges_) {
    cell.current.store(0, std::memory_order_relaxed);
    cell.peak.store(0, std::memory_order_relaxed);
  }
  call_times_.malloc.reset();
  call_times_.free.reset();
  call_times_.synchronize.reset();
  requested_sizes_.reset();
  set_pool_figures(PoolFigures{});
}

}  // namespace cupool::stats
