// SPDX-License-Identifier: Apache-2.0
// Exported: explicit virtual memory.
#include "driver/entry.h"
#include "driver/vmm.h"

namespace cupool::sim {

namespace {

CUresult granularity(size_t* bytes) {
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *bytes = kChunkBytes;
  return CUDA_SUCCESS;
}

CUresult reserve(CUdeviceptr* address, size_t bytes) {
  Context* const context = current_context().context;
  Device& device = context != nullptr ? *context->device : *world().devices.front();
  return world().vmm.reserve(address, device, bytes);
}

CUresult set_access(CUdeviceptr address, size_t bytes) {
  const Device* device = world().device_at(address);
  return device != nullptr && device->arena.backed(address, bytes) ? CUDA_SUCCESS
                                                                   : CUDA_ERROR_INVALID_VALUE;
}

CUresult get_access(unsigned long long* flags, CUdeviceptr address) {
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return set_access(address, 1);
}

}  // namespace

SIM_DEFINE(cuMemGetAllocationGranularity,
           (size_t * bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags),
           granularity(bytes))
SIM_DEFINE(cuMemCreate,
           (CUmemGenericAllocationHandle * handle, size_t bytes, const CUmemAllocationProp* prop,
            unsigned long long),
           world().vmm.create(handle, bytes, prop))
SIM_DEFINE(cuMemRelease, (CUmemGenericAllocationHandle handle), world().vmm.release(handle))
SIM_DEFINE(cuMemGetAllocationPropertiesFromHandle,
           (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle),
           world().vmm.properties(prop, handle))
SIM_DEFINE(cuMemAddressReserve,
           (CUdeviceptr * address, size_t bytes, size_t, CUdeviceptr, unsigned long long),
           reserve(address, bytes))
SIM_DEFINE(cuMemAddressFree, (CUdeviceptr address, size_t bytes),
           world().vmm.unreserve(address, bytes))
SIM_DEFINE(cuMemMap,
           (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
            unsigned long long),
           world().vmm.map(address, bytes, offset, handle))
SIM_DEFINE(cuMemUnmap, (CUdeviceptr address, size_t bytes), world().vmm.unmap(address, bytes))
SIM_DEFINE(cuMemSetAccess, (CUdeviceptr address, size_t bytes, const CUmemAccessDesc*, size_t),
           set_access(address, bytes))
SIM_DEFINE(cuMemGetAccess, (unsigned long long* flags, const CUmemLocation*, CUdeviceptr address),
           get_access(flags, address))

}  // namespace cupool::sim
