// SPDX-License-Identifier: Apache-2.0
// Preparation of the pools: their start in the background (CUPOOL_POOL_START), and the memory that
// they reserve in advance (CUPOOL_PREALLOC).
#pragma once

#include <atomic>

#include "engine/context/context_registry.h"
#include "engine/serve/giving_back.h"

namespace cupool::engine {

/// Thread-safe. The program's own calls do this work until a background thread announces itself by
/// a ..._elsewhere() function.
class PoolPreparation {
 public:
  PoolPreparation(ContextRegistry& registry, GiveBacks& give_backs)
      : registry_(registry), give_backs_(give_backs) {}

  /// From now on start_some_pools() starts pools. `wake` signals that there is one to start.
  void start_pools_elsewhere(void (*wake)()) {
    wake_starter_.store(wake);
    registry_.devices().start_pools_later(true);
  }
  /// No background thread: the program's own calls start pools.
  void start_pools_at_first() { registry_.devices().start_pools_later(false); }
  /// Starts the pools of the devices that are due. False: some are still to be started, because no
  /// context could be used.
  bool start_some_pools();
  /// Whether the driver serves for now, because the pools of `device` are still to be started.
  bool pools_are_awaited(Device& device);

  /// `start` is called once, when a pool first serves, or is kept, or memory of one is served.
  void when_pools_serve(void (*start)()) { start_with_pools_.store(start); }
  void pools_serve() {
    if (start_with_pools_.load(std::memory_order_relaxed) == nullptr) return;
    if (void (*const start)() = start_with_pools_.exchange(nullptr)) start();
  }

  /// From now on preallocate_some() reserves CUPOOL_PREALLOC. `wake` signals that there is work.
  void preallocate_elsewhere(void (*wake)()) { wake_preallocator_.store(wake); }
  /// Reserves CUPOOL_PREALLOC on the context's device, or leaves it to the background thread. First
  /// call only.
  void preallocate(Context& context);
  /// Reserves one slice on some device. True: more can be reserved at once.
  bool preallocate_some();
  /// Whether any device has more to reserve.
  bool preallocates();

 private:
  ContextRegistry& registry_;
  GiveBacks& give_backs_;
  std::atomic<void (*)()> wake_preallocator_{nullptr};
  std::atomic<void (*)()> wake_starter_{nullptr};
  std::atomic<void (*)()> start_with_pools_{nullptr};
};

}  // namespace cupool::engine
