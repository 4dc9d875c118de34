// SPDX-License-Identifier: Apache-2.0
// A device's default pool, which serves the program's own cudaMallocAsync. As the driver has it,
// the pool gives all idle memory back at each synchronisation, and the next allocation takes it
// anew. A kept pool does not: cupool has set its release threshold and gives the memory back as it
// does its own (docs/design.md, The default pool). The allocations themselves stay the driver's.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "cuda/driver.h"
#include "engine/backend/device_limits.h"
#include "engine/backend/pool_decay.h"
#include "engine/block/block_cache.h"
#include "stats/pool_growth.h"
#include "util/lock_order.h"

namespace cupool::engine {

/// What a kept pool holds. All zero: nothing, or the driver does not say.
struct DefaultPoolFill {
  std::uint64_t reserved = 0;
  std::uint64_t used = 0;

  /// Bytes that no allocation uses.
  std::uint64_t unused() const { return reserved - (used < reserved ? used : reserved); }
  /// Idle bytes that may go back. The rest of a growth step stays with what is in use, and
  /// fragments may stay, too.
  std::uint64_t idle_bytes() const {
    const std::uint64_t stays = used + (used != 0 ? stats::kPoolGrowthStep : 0);
    return reserved - (stays < reserved ? stays : reserved);
  }
  /// Whether some of them may be free. Only a trim tells: any step may have a block in use, or one
  /// that the GPU still uses.
  bool is_unclear() const { return reserved >= used + stats::kPoolGrowthStep; }
};

/// One per device. Thread-safe, but for the steps of decay, which are one thread's. No function
/// needs a current context, waits for the GPU, or harms a capture.
class DefaultPool {
 public:
  /// `wanted`: whether it may be kept at all.
  DefaultPool(const cuda::Driver& driver, int ordinal, const DeviceLimits& limits, bool wanted)
      : driver_(driver),
        ordinal_(ordinal),
        limits_(limits),
        state_(wanted ? State::untouched : State::left) {
    highs_.fill(kUnknown);
  }

  /// Whether keep() may have an effect after an allocation from `from` (null: from the device's
  /// current pool). Two loads.
  bool may_keep(CUmemoryPool from) const {
    if (state_.load(std::memory_order_acquire) != State::untouched) return false;
    const CUmemoryPool known = handle();
    return from == nullptr || known == nullptr || from == known;
  }
  /// The program has allocated from `from`, as above. True: that is the default pool, and it is
  /// kept from now on. It is never kept if the program, or anyone, has set its threshold.
  bool keep(CUmemoryPool from);
  /// From now on the pool is never kept. What is idle goes back to the device, as at a
  /// synchronisation without cupool.
  void leave();
  bool is_kept() const { return state_.load(std::memory_order_acquire) == State::kept; }

  /// The program is about to set the threshold of `pool`, or to trim it: keep() never keeps it. To
  /// be called before leave(). Takes no lock and calls no driver function.
  static void claim(CUmemoryPool pool);

  /// The driver's handle; null until an allocation of the program was seen.
  CUmemoryPool handle() const { return handle_.load(); }

  /// Gives idle memory of a kept pool back to the device. Returns the bytes.
  std::uint64_t trim();
  /// What a kept pool holds now; of another one nothing.
  DefaultPoolFill fill() const;

  /// The device has no context any more, so that decay will not look at the pool: trims it. If the
  /// device has got another default pool, the old one is forgotten.
  void contexts_gone();

  /// Decay has released blocks of `bytes` to the pool that nobody needed for its last steps, though
  /// the driver counted them as used. To be called before end_step().
  void unneeded_released(std::uint64_t bytes);
  /// Ends a step of decay: what was not in use since BlockCache::kDecaySteps steps is unneeded.
  void end_step();
  /// Trims about `bytes` of what is unneeded.
  PoolDecay::Trimmed trim_unneeded(std::uint64_t bytes);

  /// The program reads or sets an attribute of this pool other than its threshold. The results are
  /// the driver's, but for what cupool itself has changed.
  CUresult get_attribute(CUmemPool_attribute attribute, void* value);
  CUresult set_attribute(CUmemPool_attribute attribute, void* value);

 private:
  enum class State { untouched, kept, left };
  static constexpr std::uint64_t kUnknown = ~std::uint64_t{0};
  static constexpr std::uint64_t kThresholdOfDriver = 0;

  bool keep_locked(CUmemoryPool from);
  bool is_claimed(CUmemoryPool pool) const;
  bool get(CUmemoryPool pool, CUmemPool_attribute attribute, std::uint64_t* value) const;
  bool set(CUmemoryPool pool, CUmemPool_attribute attribute, std::uint64_t value) const;
  std::uint64_t read_high() const;
  bool is_still_kept();
  std::uint64_t trim_to(std::uint64_t keep_bytes);
  bool try_trim_to(std::uint64_t keep_bytes) const;
  void forget_locked(CUmemoryPool now);

  const cuda::Driver& driver_;
  const int ordinal_;
  const DeviceLimits& limits_;
  mutable util::Ranked<util::LockRank::default_pool> mutex_;
  std::atomic<State> state_;  ///< set under the mutex
  std::atomic<CUmemoryPool> handle_{nullptr};
  std::uint64_t threshold_ = 0;        ///< of a kept pool, as the driver tells it
  std::uint64_t high_of_program_ = 0;  ///< bytes in use, most since the program's last reset; mutex
  std::uint64_t high_of_step_ = 0;     ///< the same since the last step, where the program reset it
  std::array<std::uint64_t, BlockCache::kDecaySteps> highs_;  ///< the same in the last steps
  std::size_t step_ = 0;
  std::uint64_t needed_ = kUnknown;  ///< bytes that decay leaves
};

}  // namespace cupool::engine
