// SPDX-License-Identifier: Apache-2.0
// The backend over the driver's memory pools: a pair of pools, memory reserved in advance, and
// memory given back when the program no longer needs it.
#pragma once

#include <atomic>

#include "cuda/driver.h"
#include "engine/backend/backend.h"
#include "engine/backend/pool_decay.h"
#include "engine/backend/pool_device.h"
#include "engine/backend/pool_kind.h"
#include "engine/backend/pool_pair.h"
#include "engine/backend/preallocation.h"
#include "stats/pool_growth.h"

namespace cupool::engine {

class PoolBackend final : public Backend {
 public:
  /// Free device memory that growth must leave: one growth step for each of the two pools. Below
  /// that, a partly filled step would take memory from the program's other allocators or its code.
  static constexpr std::uint64_t kLeftFree = kPoolKinds * stats::kPoolGrowthStep;

  PoolBackend(const cuda::Driver& driver, const PoolDevice& device)
      : driver_(driver),
        device_(device),
        pair_(driver, device),
        decay_(driver, pair_, device.limits),
        preallocation_(driver, device, *this) {}

  BlockSource source() const override { return BlockSource::pool; }
  CUresult allocate(StreamSource& context, std::uint64_t capacity, CUdeviceptr* address) override;
  CUresult allocate_last(StreamSource& context, std::uint64_t capacity,
                         CUdeviceptr* address) override;
  bool release(StreamSource& context, CUdeviceptr address) override;
  /// Releases memory without a record. What the driver refuses becomes the device's orphan.
  void release_or_leave(StreamSource& context, CUdeviceptr address);

  /// Trims the pools: gives idle memory back to the device, as far as the driver can.
  void trim(StreamSource& context) { trim(context, 0); }
  /// The same, but for the bytes of CUPOOL_PREALLOC.
  void trim_beyond_preallocation(StreamSource& context) { trim(context, device_.limits.prealloc); }

  /// Creates the pools, and allocates and releases a block of each, because the first block takes
  /// long. For a background thread; if it fails, the program's own call creates the pools.
  void start(StreamSource& context);

  /// Bytes that the pools have reserved, at most: as of the last allocation from each. Does not ask
  /// the driver.
  std::uint64_t reserved_at_most() const {
    std::uint64_t sum = 0;
    for (const auto& each : last_reserved_) sum += each.load(std::memory_order_relaxed);
    return sum;
  }

  PoolPair& pair() { return pair_; }
  const PoolPair& pair() const { return pair_; }
  PoolDecay& decay() { return decay_; }
  Preallocation& preallocation() { return preallocation_; }
  PoolSharing& sharing() { return pair_.sharing(); }

  /// Whether the driver has pools and supports them on this device.
  static bool supported(const cuda::Driver& driver, int device);

 private:
  void trim(StreamSource& context, std::uint64_t keep_large);
  enum class Growth { leaves_some, to_the_limit };

  CUresult allocate(StreamSource& context, std::uint64_t capacity, Growth growth,
                    CUdeviceptr* address);
  void shed_slack(PoolKind kind, CUmemoryPool pool);
  bool would_exceed_maximum(std::uint64_t capacity) const;
  bool lacks_room(CUmemoryPool pool, std::uint64_t capacity, Growth growth) const;

  const cuda::Driver& driver_;
  const PoolDevice device_;
  PoolPair pair_;
  std::atomic<std::uint64_t> last_reserved_[kPoolKinds] = {};
  PoolDecay decay_;
  Preallocation preallocation_;
};

}  // namespace cupool::engine
