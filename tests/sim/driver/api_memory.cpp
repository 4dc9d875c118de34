// SPDX-License-Identifier: Apache-2.0
// Exported: legacy device memory. The point of all: cuMemFree waits for all work of the context,
// cuMemAlloc waits for nothing (docs/measurements/2026-11-22-h200-driver-facts.txt).
#include <algorithm>

#include "driver/entry.h"
#include "driver/exported.h"

namespace cupool::sim {

namespace {

constexpr size_t kPitchStep = 512;

// What a legacy allocation costs the host (measured with an H200).
uint64_t malloc_cost(bool grew, size_t bytes) {
  return grew ? 45000 + bytes / 4096 : 1500;
}
uint64_t free_cost(bool shrank, size_t bytes) {
  return shrank ? 30000 + bytes / 8192 : 1500;
}

CUresult allocate(Entry& in, CUdeviceptr* out, size_t bytes, Origin origin) {
  Context* context = nullptr;
  CUresult result = in.current(&context);
  if (result == CUDA_SUCCESS) result = world().captures.refuse_unsafe();
  if (result == CUDA_SUCCESS && (out == nullptr || bytes == 0)) result = CUDA_ERROR_INVALID_VALUE;
  if (result != CUDA_SUCCESS) return result;
  bool grew = false;
  const uintptr_t address = context->heap.allocate(*context->device, bytes, &grew);
  in.costs(malloc_cost(grew, bytes));
  if (address == 0) {
    if (world().settings.late_refusals) wait_for(in, *context, tails(*context));
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Allocation allocation;
  allocation.base = address;
  allocation.size = bytes;
  allocation.origin = origin;
  allocation.context = context;
  allocation.device = context->device->ordinal;
  world().addresses.add(allocation);
  *out = address;
  return CUDA_SUCCESS;
}

CUresult allocate_pitch(Entry& in, CUdeviceptr* out, size_t* pitch, size_t width, size_t height,
                        unsigned element_bytes) {
  const bool element_ok = element_bytes == 4 || element_bytes == 8 || element_bytes == 16;
  if (pitch == nullptr || width == 0 || height == 0 || !element_ok) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const size_t row = (width + kPitchStep - 1) / kPitchStep * kPitchStep;
  if (row < width || height > SIZE_MAX / row) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = allocate(in, out, row * height, Origin::legacy);
  if (result == CUDA_SUCCESS) *pitch = row;
  return result;
}

CUresult allocate_managed(Entry& in, CUdeviceptr* out, size_t bytes, unsigned flags) {
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return allocate(in, out, bytes, Origin::managed);
}

// Real cuMemFree of a pool pointer neither waits nor orders (CUDA Programming Guide, Stream Ordered
// Memory Allocator; measured).
CUresult free_pool_block(Entry& in, const Allocation& allocation) {
  World& w = world();
  Pool* const pool = allocation.pool;
  const uintptr_t base = allocation.base;
  const size_t bytes = allocation.size;
  w.judge.pool_freed(base, bytes, w.engine.host_clock(), Instant{});
  w.addresses.erase(base);
  pool->release(base, bytes, nullptr);
  w.collect(pool);
  in.costs(1500);
  return CUDA_SUCCESS;
}

// Needs no current context: the block knows its own, and that one is waited for (measured).
CUresult release(Entry& in, CUdeviceptr address) {
  World& w = world();
  if (current_context().context == nullptr && address == 0) return CUDA_SUCCESS;
  CUresult result = in.current_if_any();
  if (result == CUDA_SUCCESS) result = w.captures.refuse_unsafe();
  if (result != CUDA_SUCCESS || address == 0) return result;
  Allocation* found = w.addresses.starting_at(address);
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (found->origin == Origin::pool) return free_pool_block(in, *found);
  if (found->origin == Origin::imported && found->pool != nullptr) return close_exported(*found);
  if (found->origin != Origin::legacy && found->origin != Origin::managed) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Context& owner = *found->context;
  result = wait_for(in, owner, tails(owner));
  if (result != CUDA_SUCCESS) return result;
  found = w.addresses.starting_at(address);  // the lock was open while we waited
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const size_t bytes = found->size;
  w.addresses.erase(address);
  const bool shrank = owner.heap.release(*owner.device, address, bytes);
  in.costs(free_cost(shrank, bytes));
  return CUDA_SUCCESS;
}

CUresult get_info(Entry& in, size_t* free_bytes, size_t* total_bytes) {
  Context* context = nullptr;
  const CUresult result = in.current(&context);
  if (result != CUDA_SUCCESS) return result;
  const Device& device = *context->device;
  if (free_bytes != nullptr) *free_bytes = device.available();
  if (total_bytes != nullptr) *total_bytes = device.total;
  in.costs(5500);
  return CUDA_SUCCESS;
}

CUresult get_range(Entry& in, CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  Context* context = nullptr;
  const CUresult result = in.current(&context);
  if (result != CUDA_SUCCESS) return result;
  const Allocation* found = world().addresses.find(address);
  if (found == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = found->base;
  if (size != nullptr) *size = found->size;
  return CUDA_SUCCESS;
}

}  // namespace

SIM_DEFINE(cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes),
           allocate(in, address, bytes, Origin::legacy))
SIM_DEFINE(cuMemAllocPitch_v2,
           (CUdeviceptr * address, size_t* pitch, size_t width, size_t height,
            unsigned int element),
           allocate_pitch(in, address, pitch, width, height, element))
SIM_DEFINE(cuMemAllocManaged, (CUdeviceptr * address, size_t bytes, unsigned int flags),
           allocate_managed(in, address, bytes, flags))
SIM_DEFINE(cuMemFree_v2, (CUdeviceptr address), release(in, address))
SIM_DEFINE(cuMemGetInfo_v2, (size_t * free_bytes, size_t* total), get_info(in, free_bytes, total))
SIM_DEFINE(cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t* size, CUdeviceptr address),
           get_range(in, base, size, address))

// The 32-bit functions of CUDA 2: exported because their names exist, useless on this machine.
SIM_DEFINE(cuMemAlloc, (CUdeviceptr_v1*, unsigned int), CUDA_ERROR_NOT_SUPPORTED)
SIM_DEFINE(cuMemAllocPitch,
           (CUdeviceptr_v1*, unsigned int*, unsigned int, unsigned int, unsigned int),
           CUDA_ERROR_NOT_SUPPORTED)
SIM_DEFINE(cuMemFree, (CUdeviceptr_v1), CUDA_ERROR_NOT_SUPPORTED)
SIM_DEFINE(cuMemGetInfo, (unsigned int*, unsigned int*), CUDA_ERROR_NOT_SUPPORTED)
SIM_DEFINE(cuMemGetAddressRange, (CUdeviceptr_v1*, unsigned int*, CUdeviceptr_v1),
           CUDA_ERROR_NOT_SUPPORTED)

}  // namespace cupool::sim
