// SPDX-License-Identifier: Apache-2.0
// Pools started and filled by a background thread.
#include "engine/serve/pool_preparation.h"

#include <algorithm>

namespace cupool::engine {

bool PoolPreparation::pools_are_awaited(Device& device) {
  if (device.pool_start().is_done()) return false;
  if (device.pool_start().becomes_due()) wake_starter_.load(std::memory_order_relaxed)();
  return !device.pool_start().wait();
}

bool PoolPreparation::start_some_pools() {
  bool all = true;
  for (Device* device : registry_.devices().all()) {
    for (Context* context : registry_.contexts_of(device->ordinal())) {
      if (!device->pool_start().is_due()) break;
      const ContextVisit visit(*context);
      if (!visit || !context->usable()) continue;
      // The first blocks of the pools take the memory that a small device has left.
      GivingBack part(give_backs_);
      part.gave_back = true;
      device->pool_start().start(*context);
    }
    all = all && !device->pool_start().is_due();
  }
  return all;
}

void PoolPreparation::preallocate(Context& context) {
  PoolBackend* const pools = context.device().pools();
  if (pools == nullptr || !pools->preallocation().begin()) return;
  void (*const wake)() = wake_preallocator_.load();
  if (wake == nullptr) {
    const ContextVisit visit(context);
    if (visit) pools->preallocation().reserve(context);
    return;
  }
  pools->preallocation().leave_for_later();
  wake();
}

bool PoolPreparation::preallocate_some() {
  GivingBack part(give_backs_);
  part.gave_back = true;  // in case the reservation was told to end meanwhile
  for (Device* device : registry_.devices().all()) {
    PoolBackend* const pools = device->pools();
    if (pools == nullptr) continue;
    for (Context* context : registry_.contexts_of(device->ordinal())) {
      const ContextVisit visit(*context);
      if (!visit || !context->usable()) continue;
      if (pools->preallocation().reserve_some(*context) == Preallocation::goes_on) return true;
    }
  }
  return false;
}

bool PoolPreparation::preallocates() {
  const DeviceList devices = registry_.devices().all();
  return std::any_of(devices.begin(), devices.end(), [](const Device* device) {
    return device->pools() != nullptr && device->pools()->preallocation().is_left();
  });
}

}  // namespace cupool::engine
