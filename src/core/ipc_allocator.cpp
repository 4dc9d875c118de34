// The allocator's part in sharing memory with other processes (docs/design.md, IPC).
#include "core/accounting.h"
#include "core/allocator.h"
#include "util/log.h"

namespace cupool::core {

using stats::Counter;
using stats::DeviceStats;
using stats::Gauge;

std::optional<CUresult> Allocator::try_export(CUdeviceptr address, CUipcMemHandle* handle) {
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
  // The driver would share a block of plain memory that the program has freed.
  if (block->state.load(std::memory_order_acquire) != BlockState::live) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (block->source != BlockSource::pool) return std::nullopt;
  ipc::Handle made;
  if (!exports_.handle_of(*block, &made)) {
    SharedMemory memory;
    const CUresult result = block->context->device().share(*block, &memory);
    if (result != CUDA_SUCCESS) return std::nullopt;
    // Before anybody can know of it: an importer may keep the address.
    block->set_shared_outside();
    if (!exports_.add(*block, memory, &made)) {
      CUPOOL_WARN_ONCE(
          "no socket or no thread to share memory with other processes; CUPOOL_BACKEND=malloc "
          "serves memory that the driver shares by itself");
      return std::nullopt;
    }
    block->context->stats().add(Counter::ipc_exports_total);
  }
  *handle = ipc::to_driver_type(made);
  return CUDA_SUCCESS;
}

std::optional<CUresult> Allocator::try_import(const CUipcMemHandle& handle, CUdeviceptr* address) {
  if (!ipc::is_ours(handle) || address == nullptr) return std::nullopt;
  const ipc::Handle ours = ipc::from_driver_type(handle);
  Context* context = registry_.current();
  // As the driver: not without a context, and not in the process that made the handle.
  if (context == nullptr || exports_.is_self(ours.exporter)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->usable()) return std::nullopt;  // I7
  const CUresult result = rescue([&] { return imports_.open(ours, *context, address); });
  if (result == CUDA_SUCCESS) context->stats().add(Counter::ipc_imports_total);
  return result;
}

// Whether another process uses a block that is quiet here; then the exports keep it. It counts as
// retired, and is out of this thread's hands once they have it.
bool Allocator::is_leased(Block& quiet) {
  if (!quiet.shared_outside.load(std::memory_order_relaxed)) return false;
  quiet.state.store(BlockState::retired, std::memory_order_relaxed);
  if (!exports_.end(quiet, false)) return true;
  quiet.state.store(BlockState::quiet, std::memory_order_relaxed);
  return false;
}

// Gives back what was kept for importers that are gone now; true if there was any.
bool Allocator::release_ended_leases() {
  if (!exports_.any_ended()) return false;
  for (const IpcExports::Ended& ended : exports_.take_ended()) {
    if (ended.block == nullptr) {
      ended.device->add_orphans({ended.address});
      continue;
    }
    Context& context = *ended.block->context;
    DeviceStats& stats = context.stats();
    BlockList idle;
    ended.block->state.store(BlockState::quiet, std::memory_order_relaxed);
    idle.push(ended.block);
    stats.gauge_add(Gauge::retired_bytes, -signed_bytes(idle.bytes));
    stats.gauge_add(Gauge::cached_bytes, signed_bytes(idle.bytes));
    release(context, idle);
  }
  return true;
}

}  // namespace cupool::core
