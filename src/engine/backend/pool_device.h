// SPDX-License-Identifier: Apache-2.0
// A device as seen by its pools.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/backend/budget.h"
#include "engine/backend/device_limits.h"
#include "engine/backend/orphans.h"
#include "stats/device_stats.h"

namespace cupool::engine {

/// The referenced objects must outlive the pools.
struct PoolDevice {
  int ordinal;
  std::uint64_t total_bytes;
  const DeviceLimits& limits;
  const std::vector<int>& peers;  ///< devices that can get access to this one's memory
  const stats::DeviceStats& stats;
  Budget& budget;
  Orphans& orphans;
};

}  // namespace cupool::engine
