// SPDX-License-Identifier: Apache-2.0
// A kept pool needs the threads that give idle memory back, as cupool's own pools do.
#include "engine/serve/default_pools.h"

#include "engine/reclaim/serving.h"

namespace cupool::engine {

void DefaultPools::allocated(CUmemoryPool pool) {
  Context* const context = registry_.current();
  if (context == nullptr || !context->usable() || Serving::any_capture() ||
      Serving::stepped_aside() || policy_.host_reachable().any(HostReachable::Kind::managed)) {
    return;
  }
  if (keeps_none_.load() || !context->device().default_pool().keep(pool)) return;
  preparation_.pools_serve();
  // Another thread may have failed to start those threads meanwhile.
  if (keeps_none_.load()) leave_kept();
}

DefaultPool* DefaultPools::find(CUmemoryPool pool) {
  for (Device* device : registry_.devices().all()) {
    if (pool != nullptr && device->default_pool().handle() == pool) return &device->default_pool();
  }
  return nullptr;
}

void DefaultPools::leave(CUmemoryPool pool) {
  DefaultPool* const known = find(pool);
  if (known == nullptr) return;
  GivingBack part(give_backs_);
  part.gave_back = known->is_kept();
  known->leave();
}

void DefaultPools::leave_all() {
  async_.stop();
  leave_kept();
}

void DefaultPools::keep_none() {
  keeps_none_.store(true);
  leave_kept();
}

void DefaultPools::leave_kept() {
  GivingBack part(give_backs_);
  for (Device* device : registry_.devices().all()) {
    if (device->default_pool().is_kept()) part.gave_back = true;
    device->default_pool().leave();
  }
}

}  // namespace cupool::engine
