// SPDX-License-Identifier: Apache-2.0
// Decay of the pools (CUPOOL_DECAY_MS): gives back reserved memory that was not needed for some
// time.
#pragma once

#include <array>
#include <cstdint>

#include "cuda/driver.h"
#include "engine/backend/backend.h"
#include "engine/backend/pool_kind.h"
#include "engine/backend/pool_pair.h"
#include "engine/block/block_cache.h"

namespace cupool::engine {

/// One per pair of pools. For one thread.
class PoolDecay {
 public:
  PoolDecay(const cuda::Driver& driver, const PoolPair& pair, const DeviceLimits& limits)
      : driver_(driver), pair_(pair), limits_(limits) {}

  /// Ends a step of decay. `released`: bytes of unneeded blocks released to the pools in this step.
  void end_step(std::uint64_t released);
  struct Trimmed {
    bool any = false;   ///< the pools have shrunk
    bool more = false;  ///< there is more to trim
  };
  /// Trims about `bytes` that were idle in the pools for the last steps.
  Trimmed trim_unneeded(StreamSource& context, std::uint64_t bytes);

 private:
  /// Idle bytes of one pool.
  struct Slack {
    std::array<std::uint64_t, BlockCache::kDecaySteps> at_end{};  ///< of the last steps
    std::uint64_t unneeded = 0;                                   ///< idle for long enough
    std::uint64_t to_trim = 0;                                    ///< to trim in this step
  };

  const cuda::Driver& driver_;
  const PoolPair& pair_;
  const DeviceLimits& limits_;
  Slack slack_[kPoolKinds];
  std::size_t step_ = 0;
};

}  // namespace cupool::engine
