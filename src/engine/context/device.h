// SPDX-License-Identifier: Apache-2.0
// One GPU: the settings in its terms, the source of its memory, and the memory held on it.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "channel/messages.h"
#include "config/settings.h"
#include "cuda/driver.h"
#include "engine/backend/budget.h"
#include "engine/backend/default_pool.h"
#include "engine/backend/device_limits.h"
#include "engine/backend/malloc_backend.h"
#include "engine/backend/orphans.h"
#include "engine/backend/pool_backend.h"
#include "engine/backend/pool_start.h"
#include "engine/block/block.h"
#include "engine/block/size_class.h"
#include "stats/device_stats.h"

namespace cupool::engine {

/// One per device ordinal, never destroyed. Thread-safe.
class Device {
 public:
  Device(const cuda::Driver& driver, int ordinal, const config::Settings& settings);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int ordinal() const { return ordinal_; }
  /// Zeros: the driver does not say.
  const channel::DeviceId& id() const { return id_; }
  std::uint64_t total_bytes() const { return total_bytes_; }
  const DeviceLimits& limits() const { return limits_; }
  stats::DeviceStats& stats() const { return stats_; }
  Budget& budget() { return budget_; }
  /// Pool memory of contexts that are gone.
  Orphans& orphans() { return orphans_; }

  /// Null: the device has no pools, or the settings exclude them.
  PoolBackend* pools() const { return pools_; }
  /// The pool of the program's own cudaMallocAsync.
  DefaultPool& default_pool() { return default_pool_; }
  /// The state of the pools' start.
  PoolStart& pool_start() { return pool_start_; }

  /// The source of new memory.
  Backend& backend() { return *backend_.load(std::memory_order_acquire); }
  /// The backend that memory of `source` is released to. BlockSource::malloc: the real cuMemAlloc,
  /// which also serves requests that the pools cannot near the device's limit.
  Backend& backend_of(BlockSource source);
  /// From now on new memory is plain. Existing pool memory stays.
  void use_plain_memory();
  /// Whether a reclaimed block may be cached. Not a pool block once plain memory is in use. Nor a
  /// small block that is plain because the device was nearly full: it would pin the driver's chunk.
  bool may_cache(const Block& block) {
    const bool plain = &backend() == &plain_;
    return plain == (block.source != BlockSource::pool) || (!plain && is_large(block.capacity));
  }

  /// Trims the pools: gives their idle memory back to the device.
  void trim(StreamSource& context);
  /// The driver's figures of the pools; not valid without pools.
  stats::PoolFigures pool_figures() const;

 private:
  /// Devices that can get access to this device's memory.
  struct Peers {
    std::vector<int> ordinals;
    bool every_other = false;
  };
  static Peers find_peers(const cuda::Driver& driver, int ordinal);
  PoolBackend* create_pools(const cuda::Driver& driver, config::Backend wanted);

  const int ordinal_;
  const channel::DeviceId id_;
  stats::DeviceStats& stats_;
  const std::uint64_t total_bytes_;
  const DeviceLimits limits_;
  const Peers peers_;
  Budget budget_;
  Orphans orphans_;
  MallocBackend plain_;
  PoolBackend* const pools_;
  DefaultPool default_pool_;
  PoolStart pool_start_;
  std::atomic<Backend*> backend_;
};

/// Whether a block of the device can be shared with other processes.
bool can_share(const Device& device, const Block& block);

}  // namespace cupool::engine
