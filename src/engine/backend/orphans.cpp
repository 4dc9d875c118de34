// SPDX-License-Identifier: Apache-2.0
// Usually there are none; that check costs one load.
#include "engine/backend/orphans.h"

#include <new>

#include "cuda/scopes.h"
#include "engine/backend/pool_backend.h"

namespace cupool::engine {

bool Orphans::note_locked(CUdeviceptr address) {
  try {
    addresses_.push_back(address);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// Nobody's: a free on its way finds it not live.
void Orphans::add(Block& record) {
  record.state.store(BlockState::leaving);
  {
    const std::lock_guard lock(mutex_);
    any_.store(true, std::memory_order_release);
    if (!note_locked(record.address)) return records_.push(&record);
  }
  delete_block(&record);
}

void Orphans::add(CUdeviceptr address) {
  {
    const std::lock_guard lock(mutex_);
    if (note_locked(address)) return any_.store(true, std::memory_order_release);
  }
  Block* const record = new_block();
  if (record == nullptr) return;
  record->address = address;
  add(*record);
}

// Leaves those that the driver refuses twice. A pool gives memory back only once its free has
// completed.
void Orphans::release(const cuda::Driver& driver, StreamSource& context, PoolBackend* pools) {
  if (!any_.load(std::memory_order_acquire)) return;
  std::vector<CUdeviceptr> addresses;
  BlockList records;
  {
    const std::lock_guard lock(mutex_);
    addresses.swap(addresses_);
    records.splice(records_);
    any_.store(false, std::memory_order_release);
  }
  if (addresses.empty() && records.empty()) return;
  {
    const cuda::RelaxedCaptureScope relaxed(driver);
    const cuda::ContextScope scope(driver, context.handle());
    CUstream stream = nullptr;
    const auto free = [&](CUdeviceptr address) {
      return scope.ok() && context.thread_stream(&stream) == CUDA_SUCCESS &&
             driver.cuMemFreeAsync(address, stream) == CUDA_SUCCESS;
    };
    for (const CUdeviceptr address : addresses) {
      if (!free(address) && !free(address)) add(address);
    }
    while (Block* const record = records.pop()) {
      free(record->address) || free(record->address) ? delete_block(record) : add(*record);
    }
    if (stream != nullptr) cuda::wait_for_stream(driver, stream);
  }
  if (pools != nullptr) pools->trim(context);
}

bool Orphans::contains(CUdeviceptr address) const {
  if (!any_.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(mutex_);
  for (const CUdeviceptr each : addresses_) {
    if (each == address) return true;
  }
  for (const Block* record = records_.head; record != nullptr; record = record->next) {
    if (record->address == address) return true;
  }
  return false;
}

}  // namespace cupool::engine
