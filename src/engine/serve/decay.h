// SPDX-License-Identifier: Apache-2.0
// Decay (CUPOOL_DECAY_MS): returns idle memory to the device in small slices, so that no call of
// the program finds the driver busy for long. Read with docs/design.md, section Engine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/context/context_registry.h"
#include "engine/serve/async_idle.h"
#include "engine/serve/idle_memory.h"

namespace cupool::engine {

/// For one background thread, outside any call of the program. With CUPOOL_POOL=default the pool
/// does not decay: the program itself may use its memory next.
class Decay {
 public:
  Decay(const cuda::Driver& driver, ContextRegistry& registry, IdleMemory& idle, AsyncIdle& async)
      : driver_(driver), registry_(registry), idle_(idle), async_(async) {}

  /// Does the next part of a step: records a fence, or gives a slice back. Gives back memory that
  /// was idle for BlockCache::kDecaySteps steps. True: the step has more parts; call again after a
  /// pause. The caller holds off the destruction of contexts.
  bool go_on();

  /// Whether idle memory should go back soon: cupool holds some, or has a pool keep it, on a device
  /// that has less than a kScarceShare-th of its memory free. Few driver calls, none during a
  /// capture. The caller holds off the destruction of contexts.
  bool is_urgent();

 private:
  static constexpr std::uint64_t kScarceShare = 10;
  /// Bytes given back in one part. A larger slice keeps the driver busy for longer.
  static constexpr std::uint64_t kSlice = 64ull << 20;

  bool is_scarce(Context& context) const;
  void begin();
  bool give_back_some(Context& context);
  bool trim_some(Context& context);
  /// Moves the cached blocks of idle threads to the shared cache of `context`, and their retired
  /// blocks into the next epoch. A thread is idle if it did nothing since the last call.
  void settle_idle(Context& context);
  /// Releases blocks of `context` that were not needed for some time (see BlockCache) to the pools,
  /// up to the block that reaches `most_bytes`. Returns their bytes; 0: none left. Plain memory
  /// stays, because its release waits for the GPU.
  std::uint64_t release_unneeded(Context& context, std::uint64_t most_bytes);
  /// Trims about `most_bytes` of unneeded memory of each pool (see PoolDecay and DefaultPool).
  /// True: there is more.
  /// `ends_step`: it is the first of a step.
  bool trim_unneeded(Context& context, std::uint64_t most_bytes, bool ends_step);

  const cuda::Driver& driver_;
  ContextRegistry& registry_;
  IdleMemory& idle_;
  AsyncIdle& async_;
  std::vector<Context*> contexts_;  ///< contexts of this step, by device
  std::size_t next_ = 0;
  bool looked_ = false;    ///< idle threads of this context are settled
  bool trimming_ = false;  ///< last part of the step: the pools of its device
  std::array<std::uint64_t, stats::kMaxDevices> released_{};  ///< to the pools, by device
};

}  // namespace cupool::engine
