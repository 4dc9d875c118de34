// SPDX-License-Identifier: Apache-2.0
// Limits on the device memory that cupool holds, derived from the program's own usage.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/backend/device_limits.h"
#include "stats/device_stats.h"

namespace cupool::engine {

class PoolBackend;

/// One per device. Thread-safe.
class Budget {
 public:
  Budget(const DeviceLimits& limits, const stats::DeviceStats& stats)
      : limits_(limits), stats_(stats) {}

  /// Bytes that may be held before idle blocks of other sizes are released for new ones: the
  /// program's peak usage plus a share of it, plus the pending limit; of `auto` what was ever
  /// pending, or what the batches of all threads hold if that is more. Below this, a miss takes
  /// fresh memory, since a released block may be needed again next.
  std::uint64_t footprint() const;
  /// Called with the bytes of the batches that all threads may have pending.
  void set_batches(std::uint64_t bytes) {
    if (batches_.load(std::memory_order_relaxed) != bytes) batches_.store(bytes);
  }

  /// The limit on pending bytes in force: CUPOOL_MAX_PENDING. `auto`: a share of the program's
  /// peak, doubled where waits at the limit let the GPU run dry, up to a share of the device.
  std::uint64_t pending_limit() const;
  /// Whether count_wait() can raise that limit.
  bool pending_may_grow() const {
    return limits_.pending_grows && pending_limit() < limits_.max_pending;
  }
  /// A free has waited at the limit. `ran_dry`: the GPU then had nothing left, so the wait cost
  /// time. A host that stalls has the same effect once in a while, so one such wait decides
  /// nothing.
  void count_wait(bool ran_dry);

  /// Bytes that may be pending before a free waits: pending_limit(), plus half of (peak -
  /// current) usage, up to the default of CUPOOL_MAX_PENDING. `except` is subtracted from that
  /// difference: the bytes of the present free, and the lag of the statistics. The additional bytes
  /// cost no device memory, because pending blocks take the place of idle memory that is held
  /// anyway. Only half, so that idle memory is not returned to its pool and needed again soon after
  /// (docs/measurements).
  std::uint64_t pending_bound(std::uint64_t except) const;

  /// Upper bound of the device memory that cupool holds: blocks, and idle memory of `pools` (null:
  /// none). Asks the driver only once after each growth.
  std::uint64_t most_held(const PoolBackend* pools);
  void forget_most_held() { most_held_.store(0, std::memory_order_relaxed); }

  /// Bytes of blocks set aside (see Block::aside).
  std::uint64_t aside_bytes() const {
    return static_cast<std::uint64_t>(aside_bytes_.load(std::memory_order_relaxed));
  }
  void count_aside(std::int64_t bytes) { aside_bytes_.fetch_add(bytes, std::memory_order_relaxed); }

 private:
  std::uint64_t peak_of(stats::Gauge gauge) const;

  /// Of the waits at the pending limit.
  struct Waits {
    std::uint32_t doublings = 0;
    std::uint16_t counted = 0;  ///< since the last doubling or the last kWaitsOfAPeriod
    std::uint16_t dry = 0;      ///< of these
  };
  static constexpr std::uint16_t kDryWaits = 2;
  static constexpr std::uint16_t kWaitsOfAPeriod = 8;

  const DeviceLimits& limits_;
  const stats::DeviceStats& stats_;
  std::atomic<Waits> waits_{Waits{}};
  std::atomic<std::uint64_t> batches_{0};
  std::atomic<std::uint64_t> most_held_{0};  ///< in MiB, with its growth count; 0: unknown
  std::atomic<std::int64_t> aside_bytes_{0};
};

}  // namespace cupool::engine
