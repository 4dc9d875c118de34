// Which devices the process uses: those on which it has made a context. A pool admits only these
// as peers, since each device that has access makes the pool's growth dearer.
#pragma once

#include <atomic>
#include <cstdint>

#include "stats/device_stats.h"

namespace cupool::core {

namespace detail {
inline std::atomic<bool> devices_in_use[stats::kMaxDevices] = {};
}

/// Thread-safe; may be called before anything else of cupool has started.
inline bool device_in_use(int ordinal) {
  return ordinal >= 0 && ordinal < stats::kMaxDevices &&
         detail::devices_in_use[ordinal].load(std::memory_order_acquire);
}

/// True if this is news.
inline bool note_device_in_use(int ordinal) {
  return ordinal >= 0 && ordinal < stats::kMaxDevices && !device_in_use(ordinal) &&
         !detail::devices_in_use[ordinal].exchange(true, std::memory_order_acq_rel);
}

}  // namespace cupool::core
