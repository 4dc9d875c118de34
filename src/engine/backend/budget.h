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
  /// program's peak usage plus a share of it, plus the pending limit. Below this, a miss takes
  /// fresh memory, since a released block may be needed again next.
  std::uint64_t footprint() const;

  /// Bytes that may be pending before a free waits: CUPOOL_MAX_PENDING, plus half of (peak -
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
  const DeviceLimits& limits_;
  const stats::DeviceStats& stats_;
  std::atomic<std::uint64_t> most_held_{0};  ///< in MiB, with its growth count; 0: unknown
  std::atomic<std::int64_t> aside_bytes_{0};
};

}  // namespace cupool::engine
