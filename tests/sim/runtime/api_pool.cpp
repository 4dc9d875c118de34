// SPDX-License-Identifier: Apache-2.0
// Exported: stream-ordered allocation and pools.
#include "runtime/runtime.h"

namespace cupool::sim::runtime {

namespace {

template <bool pt>
cudaError_t allocate(void** p, size_t bytes, cudaStream_t s) {
  return call(RT_PICK(cuMemAllocAsync, cuMemAllocAsync_ptsz), out_pointer(p), bytes, s);
}

template <bool pt>
cudaError_t allocate_from(void** p, size_t bytes, cudaMemPool_t pool, cudaStream_t s) {
  return call(RT_PICK(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz), out_pointer(p), bytes,
              pool, s);
}

CUmemPool_attribute attribute(cudaMemPoolAttr a) {
  return static_cast<CUmemPool_attribute>(a);
}

static_assert(sizeof(cudaMemPoolProps) == sizeof(CUmemPoolProps), "the same structure");
static_assert(sizeof(cudaMemAccessDesc) == sizeof(CUmemAccessDesc), "the same structure");

}  // namespace

RT_TWINS(cudaMallocAsync, cudaMallocAsync_ptsz, (void** p, size_t bytes, cudaStream_t s),
         allocate<pt>(p, bytes, s))
RT_TWINS(cudaMallocFromPoolAsync, cudaMallocFromPoolAsync_ptsz,
         (void** p, size_t bytes, cudaMemPool_t pool, cudaStream_t s),
         allocate_from<pt>(p, bytes, pool, s))
RT_TWINS(cudaFreeAsync, cudaFreeAsync_ptsz, (void* p, cudaStream_t s),
         call(RT_PICK(cuMemFreeAsync, cuMemFreeAsync_ptsz), device_pointer(p), s))
RT_DEFINE(cudaDeviceGetDefaultMemPool, (cudaMemPool_t * pool, int device),
          call(driver().cuDeviceGetDefaultMemPool, pool, device))
RT_DEFINE(cudaDeviceGetMemPool, (cudaMemPool_t * pool, int device),
          call(driver().cuDeviceGetMemPool, pool, device))
RT_DEFINE(cudaDeviceSetMemPool, (int device, cudaMemPool_t pool),
          call(driver().cuDeviceSetMemPool, device, pool))
RT_DEFINE(cudaMemPoolCreate, (cudaMemPool_t * pool, const cudaMemPoolProps* props),
          call(driver().cuMemPoolCreate, pool, reinterpret_cast<const CUmemPoolProps*>(props)))
RT_DEFINE(cudaMemPoolDestroy, (cudaMemPool_t pool), call(driver().cuMemPoolDestroy, pool))
RT_DEFINE(cudaMemPoolTrimTo, (cudaMemPool_t pool, size_t keep),
          call(driver().cuMemPoolTrimTo, pool, keep))
RT_DEFINE(cudaMemPoolSetAttribute, (cudaMemPool_t pool, cudaMemPoolAttr attr, void* value),
          call(driver().cuMemPoolSetAttribute, pool, attribute(attr), value))
RT_DEFINE(cudaMemPoolGetAttribute, (cudaMemPool_t pool, cudaMemPoolAttr attr, void* value),
          call(driver().cuMemPoolGetAttribute, pool, attribute(attr), value))
RT_DEFINE(cudaMemPoolSetAccess, (cudaMemPool_t pool, const cudaMemAccessDesc* map, size_t count),
          call(driver().cuMemPoolSetAccess, pool, reinterpret_cast<const CUmemAccessDesc*>(map),
               count))
RT_DEFINE(cudaMemPoolGetAccess,
          (cudaMemAccessFlags * flags, cudaMemPool_t pool, cudaMemLocation* location),
          call(driver().cuMemPoolGetAccess, reinterpret_cast<CUmemAccess_flags*>(flags), pool,
               reinterpret_cast<CUmemLocation*>(location)))
RT_DEFINE(cudaMemPoolExportToShareableHandle,
          (void* handle, cudaMemPool_t pool, cudaMemAllocationHandleType type, unsigned int flags),
          call(driver().cuMemPoolExportToShareableHandle, handle, pool,
               static_cast<CUmemAllocationHandleType>(type), flags))
RT_DEFINE(cudaMemPoolImportFromShareableHandle,
          (cudaMemPool_t * pool, void* handle, cudaMemAllocationHandleType type,
           unsigned int flags),
          call(driver().cuMemPoolImportFromShareableHandle, pool, handle,
               static_cast<CUmemAllocationHandleType>(type), flags))
RT_DEFINE(cudaMemPoolExportPointer, (cudaMemPoolPtrExportData * data, void* p),
          call(driver().cuMemPoolExportPointer, reinterpret_cast<CUmemPoolPtrExportData*>(data),
               device_pointer(p)))
RT_DEFINE(cudaMemPoolImportPointer, (void** p, cudaMemPool_t pool, cudaMemPoolPtrExportData* data),
          call(driver().cuMemPoolImportPointer, out_pointer(p), pool,
               reinterpret_cast<CUmemPoolPtrExportData*>(data)))

}  // namespace cupool::sim::runtime
