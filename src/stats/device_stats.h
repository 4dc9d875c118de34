// SPDX-License-Identifier: Apache-2.0
// Counters and gauges of each device: relaxed atomics in static storage. Callers name the event and
// the device, not the place of the number, so that counts can move into per-thread shards without a
// change of the callers.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "stats/histogram.h"
#include "stats/size_histogram.h"

namespace cupool::stats {

/// Monotonic figures; see counters.def.
enum class Counter : std::size_t {
#define CUPOOL_COUNTER(key, unit, label, help) key,
#include "stats/counters.def"
  count_
};

/// Figures that rise and fall, each with its peak; see counters.def.
enum class Gauge : std::size_t {
#define CUPOOL_GAUGE(key, unit, label, help) key,
#include "stats/counters.def"
  count_
};

inline constexpr std::size_t kCounters = static_cast<std::size_t>(Counter::count_);
inline constexpr std::size_t kGauges = static_cast<std::size_t>(Gauge::count_);
inline constexpr int kMaxDevices = 64;

struct GaugeValue {
  std::int64_t current = 0;  ///< signed: a negative value is a bug that should show
  std::int64_t peak = 0;
};

/// The driver's figures of the pool that serves a device, in bytes (CU_MEMPOOL_ATTR_RESERVED_MEM_*,
/// CU_MEMPOOL_ATTR_USED_MEM_*). The caller sums several pools of one device.
struct PoolFigures {
  bool valid = false;  ///< false: no driver pool, or the driver could not be asked
  std::uint64_t reserved_current = 0;
  std::uint64_t reserved_high = 0;
  std::uint64_t used_current = 0;
  std::uint64_t used_high = 0;
};

/// Time that calls of the program took in cupool, the real call included if one was made.
struct CallTimes {
  Histogram malloc;
  Histogram free;
  Histogram synchronize;
};

/// The figures of one device. All members are thread-safe, lock-free and cannot fail.
class alignas(64) DeviceStats {
 public:
  constexpr DeviceStats() noexcept = default;
  DeviceStats(const DeviceStats&) = delete;
  DeviceStats& operator=(const DeviceStats&) = delete;

  void add(Counter counter, std::uint64_t amount = 1) noexcept {
    counters_[static_cast<std::size_t>(counter)].fetch_add(amount, std::memory_order_relaxed);
  }

  /// Changes a gauge. The peak is exact: the highest value after any addition. The caller changes
  /// each gauge, including device_bytes (with application_bytes and passthrough_bytes).
  void gauge_add(Gauge gauge, std::int64_t amount) noexcept {
    GaugeCell& cell = gauges_[static_cast<std::size_t>(gauge)];
    const std::int64_t now = cell.current.fetch_add(amount, std::memory_order_relaxed) + amount;
    if (amount > 0) raise_peak(cell, now);
  }

  /// Sets a gauge that is computed on demand (pending_limit_bytes, leaked_bytes).
  void gauge_set(Gauge gauge, std::int64_t value) noexcept {
    GaugeCell& cell = gauges_[static_cast<std::size_t>(gauge)];
    cell.current.store(value, std::memory_order_relaxed);
    raise_peak(cell, value);
  }

  std::uint64_t value(Counter counter) const noexcept {
    return counters_[static_cast<std::size_t>(counter)].load(std::memory_order_relaxed);
  }
  GaugeValue value(Gauge gauge) const noexcept {
    const GaugeCell& cell = gauges_[static_cast<std::size_t>(gauge)];
    return {cell.current.load(std::memory_order_relaxed),
            cell.peak.load(std::memory_order_relaxed)};
  }

  /// Time of the program's calls.
  CallTimes& call_times() noexcept { return call_times_; }
  const CallTimes& call_times() const noexcept { return call_times_; }

  /// Requests of successful calls, by size.
  SizeHistogram& requested_sizes() noexcept { return requested_sizes_; }
  const SizeHistogram& requested_sizes() const noexcept { return requested_sizes_; }

  /// Bytes of stream-ordered blocks that the driver counts as used and the program does not use.
  /// Exact once the caches are folded in; not reported.
  std::atomic<std::int64_t> unused_stream_ordered{0};

  /// Stores the driver's figures of the pool; a snapshot reports the last ones. The engine calls it
  /// while the driver can still be asked.
  void set_pool_figures(const PoolFigures& figures) noexcept;
  PoolFigures pool_figures() const noexcept;

  /// Sets the device's name (a copy, truncated to 127 bytes) and its total memory in bytes. Only
  /// the first call has an effect.
  void set_device_info(const char* name, std::uint64_t total_memory_bytes) noexcept;
  const char* device_name() const noexcept;  ///< "" until set
  std::uint64_t total_memory_bytes() const noexcept;

  /// Whether anything was counted.
  bool active() const noexcept;

  /// Resets every figure; for a forked child, before other threads exist.
  void reset() noexcept;

 private:
  struct GaugeCell {
    std::atomic<std::int64_t> current{0};
    std::atomic<std::int64_t> peak{0};
  };
  struct PoolCells {
    std::atomic<bool> valid{false};
    std::atomic<std::uint64_t> reserved_current{0};
    std::atomic<std::uint64_t> reserved_high{0};
    std::atomic<std::uint64_t> used_current{0};
    std::atomic<std::uint64_t> used_high{0};
  };
  enum : int { info_unset, info_being_written, info_set };

  static void raise_peak(GaugeCell& cell, std::int64_t now) noexcept {
    std::int64_t seen = cell.peak.load(std::memory_order_relaxed);
    while (now > seen && !cell.peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
    }
  }

  std::array<std::atomic<std::uint64_t>, kCounters> counters_{};
  std::array<GaugeCell, kGauges> gauges_{};
  CallTimes call_times_;
  SizeHistogram requested_sizes_;
  PoolCells pool_;
  std::atomic<int> info_state_{info_unset};
  std::uint64_t total_memory_bytes_ = 0;
  char name_[128] = {};
};

/// The figures of a device by its driver ordinal. Static storage, never freed, usable from the
/// first instruction to the last. Ordinals outside 0..63, and -1 for unknown, share one entry,
/// which a snapshot shows as device -1. Thread-safe; cannot fail.
DeviceStats& device(int ordinal) noexcept;

/// The ordinal of a device's figures; -1 for the shared entry. Cannot fail.
int ordinal_of(const DeviceStats& stats) noexcept;

/// Resets all figures in a forked child, which must not report its parent's. Async-signal-safe;
/// call it before other threads exist.
void reset_after_fork() noexcept;

}  // namespace cupool::stats
