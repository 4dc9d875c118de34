// SPDX-License-Identifier: Apache-2.0
// Driver hooks of the program's pools and of memory that comes from elsewhere: a default pool that
// cupool has the driver keep answers as it would without cupool (contract 12), and memory that is
// not device memory is noted (contract 2).
#include <algorithm>

#include "cuda/scopes.h"
#include "entry/caller.h"
#include "entry/forward.h"
#include "entry/hooks.h"
#include "entry/pool_blocks.h"
#include "process/lifecycle.h"

using cupool::engine::Allocator;
using cupool::engine::AsyncBlocks;
using cupool::engine::AsyncMemory;
using cupool::engine::DefaultPool;
using cupool::engine::HostTargets;
using cupool::entry::note_pool_block;
using cupool::process::engine;

namespace {

// The engine for a call of the program on a pool. None within a call of cupool's own, for libraries
// that hook the driver.
Allocator* caller_engine() {
  return cupool::cuda::RelaxedCaptureScope::is_open() ? nullptr : engine();
}

// A known default pool whose answer differs from the driver's; else null.
DefaultPool* default_pool(CUmemoryPool pool, CUmemPool_attribute attribute) {
  const bool differs =
      attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD || attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH;
  Allocator* const allocator = differs ? caller_engine() : nullptr;
  return allocator == nullptr ? nullptr : allocator->default_pools().find(pool);
}

// What the program uses of a pool with blocks of cupool's. The orphans of a context that has ended
// are released first.
CUresult used_bytes(const cupool::cuda::Driver& real, CUmemoryPool pool, void* value) {
  Allocator* const allocator = caller_engine();
  if (allocator != nullptr) allocator->registry().current();
  const CUresult result = real.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, value);
  if (allocator == nullptr || value == nullptr || result != CUDA_SUCCESS) return result;
  auto* const used = static_cast<cuuint64_t*>(value);
  *used -= std::min<cuuint64_t>(*used, allocator->default_pools().async().unused_bytes(pool));
  return result;
}

// The pool is the program's own from now on, if it is a default one. Before the engine's start the
// claim is all there is to know.
void claim(CUmemoryPool pool) {
  DefaultPool::claim(pool);
  if (Allocator* const allocator = caller_engine()) allocator->default_pools().leave(pool);
}

// Whether cuMemAllocAsync means another pool is not known any more.
void current_pool_changes() {
  HostTargets::has_own_current_pool();
  AsyncMemory::distrust_current_pools();
  if (Allocator* const allocator = engine()) allocator->default_pools().async().stop();
}

// CuPy's asynchronous pool sets the default pool, which is the current one already.
bool is_current_pool(const cupool::cuda::Driver& real, CUdevice device, CUmemoryPool pool) {
  CUmemoryPool current = nullptr;
  return real.cuDeviceGetMemPool != nullptr && pool != nullptr &&
         real.cuDeviceGetMemPool(&current, device) == CUDA_SUCCESS && current == pool;
}

}  // namespace

extern "C" {

CUresult cupool_hook_cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  CUPOOL_REAL_OR_RETURN(cuDeviceSetMemPool);
  if (!is_current_pool(real, device, pool)) current_pool_changes();
  return real.cuDeviceSetMemPool(device, pool);
}

CUresult cupool_hook_cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type,
                                     CUmemoryPool pool) {
  CUPOOL_REAL_OR_RETURN(cuMemSetMemPool);
  current_pool_changes();
  return real.cuMemSetMemPool(location, type, pool);
}

CUresult cupool_hook_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                           void* value) {
  CUPOOL_REAL_OR_RETURN(cuMemPoolSetAttribute);
  if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) claim(pool);
  DefaultPool* const known = default_pool(pool, attribute);
  return known != nullptr ? known->set_attribute(attribute, value)
                          : real.cuMemPoolSetAttribute(pool, attribute, value);
}

CUresult cupool_hook_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                           void* value) {
  CUPOOL_REAL_OR_RETURN(cuMemPoolGetAttribute);
  if (attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT && AsyncBlocks::any()) {
    return used_bytes(real, pool, value);
  }
  DefaultPool* const known = default_pool(pool, attribute);
  return known != nullptr ? known->get_attribute(attribute, value)
                          : real.cuMemPoolGetAttribute(pool, attribute, value);
}

CUresult cupool_hook_cuMemPoolDestroy(CUmemoryPool pool) {
  CUPOOL_REAL_OR_RETURN(cuMemPoolDestroy);
  HostTargets::forget(pool);
  return real.cuMemPoolDestroy(pool);
}

CUresult cupool_hook_cuMemPoolImportPointer(CUdeviceptr* address, CUmemoryPool pool,
                                            CUmemPoolPtrExportData* exported) {
  CUPOOL_REAL_OR_RETURN(cuMemPoolImportPointer);
  const CUresult result = real.cuMemPoolImportPointer(address, pool, exported);
  if (result == CUDA_SUCCESS) note_pool_block(real, pool, *address);
  return result;
}

// Another process's memory may be host memory, and so may that of a graphics driver.
CUresult cupool_hook_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                                    void* exported,
                                                    CUmemAllocationHandleType type) {
  CUPOOL_REAL_OR_RETURN(cuMemImportFromShareableHandle);
  const CUresult result = real.cuMemImportFromShareableHandle(handle, exported, type);
  if (result != CUDA_SUCCESS || cupool::entry::is_cuda_library(__builtin_return_address(0))) {
    return result;
  }
  CUmemAllocationProp properties = {};
  const auto is_host = [&properties] {
    return properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE &&
           properties.location.type != CU_MEM_LOCATION_TYPE_INVALID;  // of several devices
  };
  if (real.cuMemGetAllocationPropertiesFromHandle != nullptr &&
      real.cuMemGetAllocationPropertiesFromHandle(&properties, *handle) == CUDA_SUCCESS &&
      is_host()) {
    HostTargets::host_is_elsewhere();
  }
  return result;
}

CUresult cupool_hook_cuExternalMemoryGetMappedBuffer(
    CUdeviceptr* address, CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC* buffer) {
  CUPOOL_REAL_OR_RETURN(cuExternalMemoryGetMappedBuffer);
  const CUresult result = real.cuExternalMemoryGetMappedBuffer(address, memory, buffer);
  if (result == CUDA_SUCCESS) HostTargets::note_foreign(real, *address);
  return result;
}

CUresult cupool_hook_cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes) {
  CUPOOL_REAL_OR_RETURN(cuMemPoolTrimTo);
  claim(pool);
  if (AsyncBlocks::any()) {
    if (Allocator* const allocator = caller_engine())
      allocator->default_pools().async().give_back_of(pool);
  }
  return real.cuMemPoolTrimTo(pool, keep_bytes);
}

}  // extern "C"
