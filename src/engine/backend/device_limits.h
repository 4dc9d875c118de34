// SPDX-License-Identifier: Apache-2.0
// The settings in bytes, for one device.
#pragma once

#include <cstdint>

namespace cupool::engine {

struct DeviceLimits {
  std::uint64_t max_block = 0;
  std::uint64_t max_cached = 0;
  std::uint64_t max_pending = 0;
  std::uint64_t default_pending = 0;  ///< default of max_pending
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
