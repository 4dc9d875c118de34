// SPDX-License-Identifier: Apache-2.0
// Usually there are none; that check costs one load.
#include "engine/backend/orphans.h"

#include <algorithm>

#include "engine/backend/pool_backend.h"

namespace cupool::engine {

void Orphans::add(const std::vector<CUdeviceptr>& addresses) {
  const std::lock_guard lock(mutex_);
  addresses_.insert(addresses_.end(), addresses.begin(), addresses.end());
  any_.store(!addresses_.empty(), std::memory_order_release);
}

void Orphans::release(StreamSource& context, PoolBackend* pools) {
  if (!any_.load(std::memory_order_acquire)) return;
  std::vector<CUdeviceptr> addresses;
  {
    const std::lock_guard lock(mutex_);
    addresses.swap(addresses_);
    any_.store(false, std::memory_order_release);
  }
  if (addresses.empty()) return;
  pools->release_all(context, addresses);
  pools->trim(context);
}

bool Orphans::contains(CUdeviceptr address) const {
  if (!any_.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(mutex_);
  return std::find(addresses_.begin(), addresses_.end(), address) != addresses_.end();
}

}  // namespace cupool::engine
