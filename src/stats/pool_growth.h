// SPDX-License-Identifier: Apache-2.0
// The step by which the driver grows a memory pool: what reports round a pool's size to, and what
// the engine counts with where it has to grow one.
#pragma once

#include <cstdint>

namespace cupool::stats {

/// Bytes by which the driver grows a pool, at least (docs/measurements).
constexpr std::uint64_t kPoolGrowthStep = 32ull << 20;

/// `bytes` in whole growth steps.
constexpr std::uint64_t in_growth_steps(std::uint64_t bytes) noexcept {
  const bool rest = bytes % kPoolGrowthStep != 0;
  return (bytes / kPoolGrowthStep + (rest ? 1 : 0)) * kPoolGrowthStep;
}

}  // namespace cupool::stats
