// SPDX-License-Identifier: Apache-2.0
// Physical memory is counted when it is created, addresses when they are reserved; what is reserved
// but not mapped faults.
#include "driver/vmm.h"

#include <sys/mman.h>
#include <unistd.h>

#include "driver/device.h"
#include "driver/memory_file.h"
#include "driver/world.h"

namespace cupool::sim {

CUresult VirtualMemory::create(CUmemGenericAllocationHandle* handle, size_t bytes,
                               const CUmemAllocationProp* prop) {
  World& w = world();
  if (handle == nullptr || prop == nullptr || bytes == 0 || bytes % kChunkBytes != 0 ||
      prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop->location.id < 0 ||
      static_cast<size_t>(prop->location.id) >= w.devices.size()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Device& device = *w.devices[static_cast<size_t>(prop->location.id)];
  if (!device.has(bytes) || !device.count(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  Physical physical;
  physical.file = memory_file("cupool-sim-physical");
  if (physical.file < 0 || ftruncate(physical.file, static_cast<off_t>(bytes)) != 0) {
    device.uncount(bytes);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  physical.device = &device;
  physical.prop = *prop;
  physical.bytes = bytes;
  *handle = ++last_;
  physical_.emplace(*handle, physical);
  return CUDA_SUCCESS;
}

void VirtualMemory::drop(CUmemGenericAllocationHandle handle) {
  const auto it = physical_.find(handle);
  if (--it->second.references != 0) return;
  it->second.device->uncount(it->second.bytes);
  close(it->second.file);
  physical_.erase(it);
}

CUresult VirtualMemory::release(CUmemGenericAllocationHandle handle) {
  if (physical_.count(handle) == 0) return CUDA_ERROR_INVALID_VALUE;
  drop(handle);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::reserve(CUdeviceptr* address, Device& device, size_t bytes) {
  if (address == nullptr || bytes == 0 || bytes % kChunkBytes != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uintptr_t at = device.arena.reserve(bytes);
  if (at == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  reserved_.emplace(at, bytes);
  *address = at;
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::unreserve(CUdeviceptr address, size_t bytes) {
  const auto it = reserved_.find(address);
  if (it == reserved_.end() || it->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  Device& device = *world().device_at(address);
  if (!device.arena.bare(address, bytes)) return CUDA_ERROR_INVALID_VALUE;  // still mapped
  device.arena.unreserve(address, bytes);
  reserved_.erase(it);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::map(CUdeviceptr address, size_t bytes, size_t offset,
                            CUmemGenericAllocationHandle handle) {
  World& w = world();
  const auto it = physical_.find(handle);
  Device* const device = w.device_at(address);
  if (it == physical_.end() || device == nullptr || offset + bytes > it->second.bytes ||
      bytes % kChunkBytes != 0 || !device->arena.bare(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!device->arena.back_by(address, bytes, it->second.file, offset)) {
    return CUDA_ERROR_MAP_FAILED;
  }
  ++it->second.references;
  mapped_[address] = Mapping{bytes, handle};
  Allocation allocation;
  allocation.base = address;
  allocation.size = bytes;
  allocation.origin = Origin::mapped;
  allocation.device = it->second.device->ordinal;
  w.addresses.add(allocation);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::unmap(CUdeviceptr address, size_t bytes) {
  const auto it = mapped_.find(address);
  if (it == mapped_.end() || it->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
  world().addresses.erase(address);
  world().device_at(address)->arena.unback(address, bytes);
  drop(it->second.handle);
  mapped_.erase(it);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::properties(CUmemAllocationProp* prop,
                                   CUmemGenericAllocationHandle handle) const {
  const auto it = physical_.find(handle);
  if (prop == nullptr || it == physical_.end()) return CUDA_ERROR_INVALID_VALUE;
  *prop = it->second.prop;
  return CUDA_SUCCESS;
}

}  // namespace cupool::sim
