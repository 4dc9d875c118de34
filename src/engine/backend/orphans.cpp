// SPDX-License-Identifier: Apache-2.0
// Usually there are none; that check costs one load.
#include "engine/backend/orphans.h"

#include <algorithm>

#include "cuda/scopes.h"
#include "engine/backend/pool_backend.h"

namespace cupool::engine {

namespace {

// Returns those that the driver refuses twice. A pool gives memory back only once its free has
// completed.
std::vector<CUdeviceptr> free_all(const cuda::Driver& driver, StreamSource& context,
                                  const std::vector<CUdeviceptr>& addresses) {
  const cuda::RelaxedCaptureScope relaxed(driver);
  const cuda::ContextScope scope(driver, context.handle());
  std::vector<CUdeviceptr> refused;
  CUstream stream = nullptr;
  for (const CUdeviceptr address : addresses) {
    const auto free = [&] {
      return scope.ok() && context.thread_stream(&stream) == CUDA_SUCCESS &&
             driver.cuMemFreeAsync(address, stream) == CUDA_SUCCESS;
    };
    if (!free() && !free()) refused.push_back(address);
  }
  if (stream != nullptr) driver.cuStreamSynchronize(stream);
  return refused;
}

}  // namespace

void Orphans::add(const std::vector<CUdeviceptr>& addresses) {
  if (addresses.empty()) return;
  const std::lock_guard lock(mutex_);
  addresses_.insert(addresses_.end(), addresses.begin(), addresses.end());
  any_.store(!addresses_.empty(), std::memory_order_release);
}

void Orphans::release(const cuda::Driver& driver, StreamSource& context, PoolBackend* pools) {
  if (!any_.load(std::memory_order_acquire)) return;
  std::vector<CUdeviceptr> addresses;
  {
    const std::lock_guard lock(mutex_);
    addresses.swap(addresses_);
    any_.store(false, std::memory_order_release);
  }
  if (addresses.empty()) return;
  add(free_all(driver, context, addresses));
  if (pools != nullptr) pools->trim(context);
}

bool Orphans::contains(CUdeviceptr address) const {
  if (!any_.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(mutex_);
  return std::find(addresses_.begin(), addresses_.end(), address) != addresses_.end();
}

}  // namespace cupool::engine
