// SPDX-License-Identifier: Apache-2.0
// The devices that the process uses: those on which it has created a context. A pool gives access
// only to these peers (contract 7), since each device with access makes the pool's growth slower.
#pragma once

#include <atomic>
#include <cstdint>

#include "stats/device_stats.h"

namespace cupool::engine {

namespace detail {
inline std::atomic<bool> devices_in_use[stats::kMaxDevices] = {};
}

/// Thread-safe. May be called before the rest of cupool has started.
inline bool device_in_use(int ordinal) {
  return ordinal >= 0 && ordinal < stats::kMaxDevices &&
         detail::devices_in_use[ordinal].load(std::memory_order_acquire);
}

/// Notes the use of a device. True: it was not in use before.
inline bool note_device_in_use(int ordinal) {
  return ordinal >= 0 && ordinal < stats::kMaxDevices && !device_in_use(ordinal) &&
         !detail::devices_in_use[ordinal].exchange(true, std::memory_order_acq_rel);
}

}  // namespace cupool::engine
