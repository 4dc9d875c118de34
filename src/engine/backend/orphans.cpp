// SPDX-License-Identifier: Apache-2.0
// Usually there are none; that check costs one load.
#include "engine/backend/orphans.h"

#include "cuda/scopes.h"
#include "engine/backend/pool_backend.h"

namespace cupool::engine {

namespace {

// Leaves those that the driver refuses twice. A pool gives memory back only once its free has
// completed.
void free_all(const cuda::Driver& driver, StreamSource& context, BlockList& records) {
  const cuda::RelaxedCaptureScope relaxed(driver);
  const cuda::ContextScope scope(driver, context.handle());
  BlockList refused;
  CUstream stream = nullptr;
  while (Block* const record = records.pop()) {
    const auto free = [&] {
      return scope.ok() && context.thread_stream(&stream) == CUDA_SUCCESS &&
             driver.cuMemFreeAsync(record->address, stream) == CUDA_SUCCESS;
    };
    if (free() || free()) {
      delete_block(record);
    } else {
      refused.push(record);
    }
  }
  if (stream != nullptr) driver.cuStreamSynchronize(stream);
  records = refused;
}

}  // namespace

void Orphans::add(BlockList& records) {
  if (records.empty()) return;
  const std::lock_guard lock(mutex_);
  records_.splice(records);
  any_.store(true, std::memory_order_release);
}

// Nobody's: a free on its way finds it not live.
void Orphans::add(Block& record) {
  record.state.store(BlockState::leaving);
  BlockList one;
  one.push(&record);
  add(one);
}

void Orphans::add(CUdeviceptr address) {
  Block* const record = new_block();
  if (record == nullptr) return;
  record->address = address;
  add(*record);
}

void Orphans::release(const cuda::Driver& driver, StreamSource& context, PoolBackend* pools) {
  if (!any_.load(std::memory_order_acquire)) return;
  BlockList records;
  {
    const std::lock_guard lock(mutex_);
    records.splice(records_);
    any_.store(false, std::memory_order_release);
  }
  if (records.empty()) return;
  free_all(driver, context, records);
  add(records);
  if (pools != nullptr) pools->trim(context);
}

bool Orphans::contains(CUdeviceptr address) const {
  if (!any_.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(mutex_);
  for (const Block* record = records_.head; record != nullptr; record = record->next) {
    if (record->address == address) return true;
  }
  return false;
}

}  // namespace cupool::engine
