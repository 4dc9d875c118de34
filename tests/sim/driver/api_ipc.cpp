// SPDX-License-Identifier: Apache-2.0
// Exported: sharing memory with other processes, by legacy handles and by pools.
#include <cstring>

#include "driver/entry.h"
#include "driver/exported.h"

namespace cupool::sim {

namespace {

// Pool memory is not legacy-IPC capable (measured).
CUresult get_handle(Entry& in, CUipcMemHandle* handle, CUdeviceptr address) {
  World& w = world();
  Context* context = nullptr;
  const CUresult result = in.current(&context);
  if (result != CUDA_SUCCESS) return result;
  const Allocation* found = w.addresses.find(address);
  if (handle == nullptr || found == nullptr || found->origin != Origin::legacy) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Exported what = exported(*w.devices[static_cast<size_t>(found->device)], *found);
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &what, sizeof what);
  return CUDA_SUCCESS;
}

CUresult open_handle(Entry& in, CUdeviceptr* address, const CUipcMemHandle& handle) {
  Context* context = nullptr;
  const CUresult result = in.current(&context);
  if (result != CUDA_SUCCESS) return result;
  Exported what;
  std::memcpy(static_cast<void*>(&what), &handle, sizeof what);
  if (address == nullptr || !is_exported(what)) return CUDA_ERROR_INVALID_VALUE;
  // cuda.h: a handle cannot be opened in the process that made it.
  if (what.process == this_process()) return CUDA_ERROR_INVALID_CONTEXT;
  return open_exported(what, context, nullptr, address);
}

CUresult close_handle(Entry& in, CUdeviceptr address) {
  World& w = world();
  Context* context = nullptr;
  CUresult result = in.current(&context);
  if (result != CUDA_SUCCESS) return result;
  Allocation* const found = w.addresses.starting_at(address);
  if (found == nullptr || found->origin != Origin::imported || found->pool != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return close_exported(*found);
}

bool shareable(CUmemAllocationHandleType type) {
  return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

Pool* known(CUmemoryPool handle) {
  auto* const pool = reinterpret_cast<Pool*>(handle);
  return handle != nullptr && world().pools.count(pool) != 0 ? pool : nullptr;
}

CUresult pool_export(void* out, CUmemoryPool handle, CUmemAllocationHandleType type) {
  Pool* const pool = known(handle);
  if (!world().settings.pools) return CUDA_ERROR_NOT_SUPPORTED;
  if (out == nullptr || pool == nullptr || !shareable(type) || pool->imported() ||
      (pool->props().handleTypes & type) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int file = export_pool(*pool);
  if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  pool->exported = true;
  *static_cast<int*>(out) = file;
  return CUDA_SUCCESS;
}

CUresult pool_import(CUmemoryPool* out, void* handle, CUmemAllocationHandleType type) {
  World& w = world();
  ExportedPool what;
  if (!w.settings.pools) return CUDA_ERROR_NOT_SUPPORTED;
  if (out == nullptr || !shareable(type)) return CUDA_ERROR_INVALID_VALUE;
  const int file = static_cast<int>(reinterpret_cast<intptr_t>(handle));
  if (!read_exported_pool(file, &what)) return CUDA_ERROR_INVALID_VALUE;
  if (static_cast<size_t>(what.device) >= w.devices.size()) return CUDA_ERROR_INVALID_DEVICE;
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, what.device};
  auto* const pool = new Pool(*w.devices[static_cast<size_t>(what.device)], props);
  pool->exporter_pool = what.pool;
  pool->exporter_process = what.process;
  w.pools.insert(pool);
  *out = pool->handle();
  return CUDA_SUCCESS;
}

// The pool must have been exported before (measured).
CUresult export_pointer(CUmemPoolPtrExportData* out, CUdeviceptr address) {
  World& w = world();
  const Allocation* found = w.addresses.starting_at(address);
  if (out == nullptr || found == nullptr || found->origin != Origin::pool ||
      !found->pool->exported) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Exported what = exported(found->pool->device(), *found);
  std::memset(out, 0, sizeof *out);
  std::memcpy(out, &what, sizeof what);
  return CUDA_SUCCESS;
}

CUresult import_pointer(CUdeviceptr* out, CUmemoryPool handle, CUmemPoolPtrExportData* data) {
  Pool* const pool = known(handle);
  Exported what;
  if (out == nullptr || pool == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(static_cast<void*>(&what), data, sizeof what);
  if (!is_exported(what) || !pool->imported() || what.pool != pool->exporter_pool ||
      what.process != pool->exporter_process) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return open_exported(what, nullptr, pool, out);
}

}  // namespace

SIM_DEFINE(cuIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr address),
           get_handle(in, handle, address))
SIM_DEFINE(cuIpcOpenMemHandle, (CUdeviceptr * address, CUipcMemHandle handle, unsigned int),
           open_handle(in, address, handle))
SIM_DEFINE(cuIpcOpenMemHandle_v2, (CUdeviceptr * address, CUipcMemHandle handle, unsigned int),
           open_handle(in, address, handle))
SIM_DEFINE(cuIpcCloseMemHandle, (CUdeviceptr address), close_handle(in, address))
SIM_DEFINE(cuMemPoolExportToShareableHandle,
           (void* out, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long),
           pool_export(out, pool, type))
SIM_DEFINE(cuMemPoolImportFromShareableHandle,
           (CUmemoryPool * out, void* handle, CUmemAllocationHandleType type, unsigned long long),
           pool_import(out, handle, type))
SIM_DEFINE(cuMemPoolExportPointer, (CUmemPoolPtrExportData * out, CUdeviceptr address),
           export_pointer(out, address))
SIM_DEFINE(cuMemPoolImportPointer,
           (CUdeviceptr * out, CUmemoryPool pool, CUmemPoolPtrExportData* data),
           import_pointer(out, pool, data))

}  // namespace cupool::sim
