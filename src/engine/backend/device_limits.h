// SPDX-License-Identifier: Apache-2.0
// The settings in bytes, for one device.
#pragma once

#include <cstdint>

namespace cupool::engine {

struct DeviceLimits {
  std::uint64_t max_block = 0;
  std::uint64_t max_cached = 0;
  std::uint64_t max_pending = 0;      ///< the highest limit that may be in force (see Budget)
  bool pending_grows = false;         ///< CUPOOL_MAX_PENDING=auto
  std::uint64_t default_pending = 0;  ///< max_pending of auto
  std::uint64_t release_threshold = 0;
  std::uint64_t max_size = 0;  ///< 0: no limit
  std::uint64_t prealloc = 0;
  bool use_default_pool = false;
  bool ipc = true;
  bool reuse_follow_event_dependencies = true;
  bool reuse_allow_opportunistic = true;
  bool reuse_allow_internal_dependencies = false;
};

}  // namespace cupool::engine
