// What is counted for each device, and how the engine counts it: relaxed atomics, static storage.
// Callers say what happened and to which device, never where the number lives, so that counts can
// move into per-thread shards without touching them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "stats/histogram.h"
#include "stats/size_histogram.h"

namespace cupool::stats {

/// Figures that only grow; see counters.def.
enum class Counter : std::size_t {
#define CUPOOL_COUNTER(key, unit, help) key,
#include "stats/counters.def"
  count_
};

/// Figures that rise and fall, each with its peak; see counters.def.
enum class Gauge : std::size_t {
#define CUPOOL_GAUGE(key, unit, help) key,
#include "stats/counters.def"
  count_
};

inline constexpr std::size_t kCounters = static_cast<std::size_t>(Counter::count_);
inline constexpr std::size_t kGauges = static_cast<std::size_t>(Gauge::count_);
inline constexpr int kMaxDevices = 64;

struct GaugeValue {
  std::int64_t current = 0;  ///< signed: a negative one is a bug that should show
  std::int64_t peak = 0;
};

/// What the driver says of the pool that serves a device, in bytes (CU_MEMPOOL_ATTR_RESERVED_MEM_*,
/// CU_MEMPOOL_ATTR_USED_MEM_*); several pools of one device are added up by who sets it.
struct PoolFigures {
  bool valid = false;  ///< false: no driver pool, or the driver could not be asked
  std::uint64_t reserved_current = 0;
  std::uint64_t reserved_high = 0;
  std::uint64_t used_current = 0;
  std::uint64_t used_high = 0;
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

  /// Moves a gauge. The peak is exact: the highest value that any add gave. Each gauge is moved by
  /// the caller, device_bytes too (with application_bytes and passthrough_bytes).
  void gauge_add(Gauge gauge, std::int64_t amount) noexcept {
    GaugeCell& cell = gauges_[static_cast<std::size_t>(gauge)];
    const std::int64_t now = cell.current.fetch_add(amount, std::memory_order_relaxed) + amount;
    if (amount > 0) raise_peak(cell, now);
  }

  /// Sets a gauge that is computed, not followed (leaked_blocks, leaked_bytes).
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

  /// Time that calls of the program took in cupool, the real call included if one was made.
  Histogram& malloc_time() noexcept { return malloc_time_; }
  Histogram& free_time() noexcept { return free_time_; }
  Histogram& synchronize_time() noexcept { return synchronize_time_; }
  const Histogram& malloc_time() const noexcept { return malloc_time_; }
  const Histogram& free_time() const noexcept { return free_time_; }
  const Histogram& synchronize_time() const noexcept { return synchronize_time_; }

  /// What the program asked for in calls that succeeded, by size.
  SizeHistogram& requested_sizes() noexcept { return requested_sizes_; }
  const SizeHistogram& requested_sizes() const noexcept { return requested_sizes_; }

  /// Keeps what the driver said of the pool; the last call before take() is reported. The engine
  /// calls it while the driver can still be asked.
  void set_pool_figures(const PoolFigures& figures) noexcept;
  PoolFigures pool_figures() const noexcept;

  /// Names the device (cut to 127 bytes; a copy is kept) and its total memory in bytes. The first
  /// call counts.
  void set_device_info(const char* name, std::uint64_t total_memory_bytes) noexcept;
  const char* device_name() const noexcept;  ///< "" until set
  std::uint64_t total_memory_bytes() const noexcept;

  /// Whether anything was counted.
  bool active() const noexcept;

  /// Every figure back to zero; for a forked child, before other threads exist.
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
  Histogram malloc_time_;
  Histogram free_time_;
  Histogram synchronize_time_;
  SizeHistogram requested_sizes_;
  PoolCells pool_;
  std::atomic<int> info_state_{info_unset};
  std::uint64_t total_memory_bytes_ = 0;
  char name_[128] = {};
};

/// The figures of a device by its driver ordinal. Static storage, never freed, usable from the
/// first instruction to the last. An ordinal outside 0..63 (or unknown: -1) gets one shared spare,
/// which a snapshot shows as device -1. Thread-safe; cannot fail.
DeviceStats& device(int ordinal) noexcept;

/// The ordinal of a device's figures; -1 of the spare's. Cannot fail.
int ordinal_of(const DeviceStats& stats) noexcept;

/// Empties all figures in a forked child, which must report what it did and not what its parent
/// did. Async-signal-safe; call it before other threads exist.
void reset_after_fork() noexcept;

}  // namespace cupool::stats
