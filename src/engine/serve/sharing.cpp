// SPDX-License-Identifier: Apache-2.0
// Memory that processes share: from block to handle, and from handle to block (docs/design.md,
// IPC).
#include "engine/serve/sharing.h"

#include "engine/reclaim/lane_mark.h"
#include "util/log.h"

namespace cupool::engine {

using stats::Counter;

std::optional<CUresult> Sharing::try_export(CUdeviceptr address, CUipcMemHandle* handle) {
  CUdeviceptr base = 0;
  if (handle == nullptr ||
      driver_.cuMemGetAddressRange_v2(&base, nullptr, address) != CUDA_SUCCESS) {
    return std::nullopt;
  }
  Block* block = blocks_.find(base);
  if (block == nullptr || block->source == BlockSource::passed_through ||
      !block->context->usable()) {
    return std::nullopt;
  }
  // The driver would share a block of plain memory although the program has freed it, and for an
  // address behind the request.
  if (block->state.load(std::memory_order_acquire) != BlockState::live ||
      address - base >= block->requested) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (block->source != BlockSource::pool) return std::nullopt;
  ipc::Handle made;
  if (!exports_.handle_of(*block, &made)) {
    SharedMemory memory;
    const CUresult result =
        block->context->device().pools()->sharing().share(block->capacity, block->address, &memory);
    if (result != CUDA_SUCCESS) return std::nullopt;
    // Before the handle is known to anyone: an importer may keep the address.
    block->set_shared_outside();
    LaneMark::wait(driver_);  // its last owner's work may be pending
    if (!exports_.add(*block, memory, &made)) {
      CUPOOL_WARN_ONCE(
          "cannot share memory with other processes: no socket or thread could be created. "
          "CUPOOL_BACKEND=malloc serves memory that the driver shares without them");
      return std::nullopt;
    }
    block->context->stats().add(Counter::ipc_exports_total);
  }
  *handle = ipc::to_driver_type(made);
  return CUDA_SUCCESS;
}

std::optional<CUresult> Sharing::try_import(const CUipcMemHandle& handle, CUdeviceptr* address) {
  if (!ipc::is_ours(handle) || address == nullptr) return std::nullopt;
  const ipc::Handle ours = ipc::from_driver_type(handle);
  Context* context = registry_.current();
  // As the driver: refused without a context, and in the process that made the handle.
  if (context == nullptr || exports_.is_self(ours.exporter)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->usable()) return std::nullopt;  // I7
  const CUresult result =
      rescue(out_of_memory_, [&] { return imports_.open(ours, *context, address); });
  if (result == CUDA_SUCCESS) context->stats().add(Counter::ipc_imports_total);
  return result;
}

}  // namespace cupool::engine
