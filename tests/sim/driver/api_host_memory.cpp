// SPDX-License-Identifier: Apache-2.0
// Exported: page-locked host memory. All of it is mapped and portable, as on a 64-bit Linux
// (CUDA Driver API, Unified Addressing; that cudaMallocHost's carries the mapped flag: measured).
#include "driver/entry.h"

namespace cupool::sim {

namespace {

CUresult allocate(Entry& in, void** out, size_t bytes, unsigned flags) {
  Context* context = nullptr;
  CUresult result = in.current(&context);
  if (result == CUDA_SUCCESS && (out == nullptr || bytes == 0)) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) result = world().captures.refuse_unsafe();
  if (result != CUDA_SUCCESS) return result;
  void* const memory = allocate_host(bytes);
  if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation allocation;
  allocation.base = reinterpret_cast<uintptr_t>(memory);
  allocation.size = bytes;
  allocation.held = bytes;
  allocation.origin = Origin::host;
  allocation.context = context;
  allocation.device = context->device->ordinal;
  allocation.host_flags = flags | CU_MEMHOSTALLOC_DEVICEMAP;
  world().addresses.add(allocation);
  *out = memory;
  return CUDA_SUCCESS;
}

CUresult release(Entry& in, void* memory) {
  World& w = world();
  CUresult result = in.current_if_any();
  if (result == CUDA_SUCCESS) result = w.captures.refuse_unsafe();
  if (result != CUDA_SUCCESS || memory == nullptr) return result;
  const auto base = reinterpret_cast<uintptr_t>(memory);
  const Allocation* found = w.addresses.starting_at(base);
  if (found == nullptr || found->origin != Origin::host) return CUDA_ERROR_INVALID_VALUE;
  // It is mapped in every context, and none may use it any more.
  result = wait_for(in, *found->context, tails(*found->context));
  for (size_t i = 0; result == CUDA_SUCCESS && i < w.contexts.size(); ++i) {
    Context& context = *w.contexts[i];
    if (&context != found->context && context.sticky == CUDA_SUCCESS) {
      wait_for(in, context, tails(context));
    }
    found = w.addresses.starting_at(base);
    if (found == nullptr) return result;
  }
  found = w.addresses.starting_at(base);
  if (result != CUDA_SUCCESS || found == nullptr) return result;
  release_host(base, found->held);
  w.addresses.erase(base);
  return CUDA_SUCCESS;
}

CUresult enlist(Entry& in, void* memory, size_t bytes, unsigned flags) {
  World& w = world();
  Context* context = nullptr;
  CUresult result = in.current(&context);
  if (result == CUDA_SUCCESS && (memory == nullptr || bytes == 0)) {
    result = CUDA_ERROR_INVALID_VALUE;
  }
  if (result == CUDA_SUCCESS) result = w.captures.refuse_unsafe();
  if (result != CUDA_SUCCESS) return result;
  const auto base = reinterpret_cast<uintptr_t>(memory);
  if (w.addresses.find(base) != nullptr) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  Allocation allocation;
  allocation.base = base;
  allocation.size = bytes;
  allocation.origin = Origin::registered;
  allocation.context = context;
  allocation.device = context->device->ordinal;
  allocation.host_flags = flags | CU_MEMHOSTREGISTER_DEVICEMAP;
  w.addresses.add(allocation);
  return CUDA_SUCCESS;
}

CUresult discharge(Entry& in, void* memory) {
  World& w = world();
  Context* context = nullptr;
  CUresult result = in.current(&context);
  if (result == CUDA_SUCCESS) result = w.captures.refuse_unsafe();
  if (result != CUDA_SUCCESS) return result;
  const auto base = reinterpret_cast<uintptr_t>(memory);
  const Allocation* found = w.addresses.starting_at(base);
  if (found == nullptr || found->origin != Origin::registered) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  result = wait_for(in, *found->context, tails(*found->context));
  w.addresses.erase(base);
  return result;
}

CUresult device_pointer(Entry& in, CUdeviceptr* out, void* memory, unsigned flags) {
  Context* context = nullptr;
  const CUresult result = in.current(&context);
  if (result != CUDA_SUCCESS) return result;
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const Allocation* found = world().addresses.find(address);
  if (out == nullptr || flags != 0 || found == nullptr || !found->on_host()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *out = address;
  return CUDA_SUCCESS;
}

CUresult get_flags(Entry& in, unsigned* flags, void* memory) {
  Context* context = nullptr;
  const CUresult result = in.current(&context);
  if (result != CUDA_SUCCESS) return result;
  const Allocation* found = world().addresses.find(reinterpret_cast<uintptr_t>(memory));
  if (flags == nullptr || found == nullptr || found->origin != Origin::host) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *flags = found->host_flags;
  return CUDA_SUCCESS;
}

}  // namespace

SIM_DEFINE(cuMemHostAlloc, (void** memory, size_t bytes, unsigned int flags),
           allocate(in, memory, bytes, flags))
SIM_DEFINE(cuMemAllocHost, (void** memory, unsigned int bytes), allocate(in, memory, bytes, 0))
SIM_DEFINE(cuMemAllocHost_v2, (void** memory, size_t bytes), allocate(in, memory, bytes, 0))
SIM_DEFINE(cuMemFreeHost, (void* memory), release(in, memory))
SIM_DEFINE(cuMemHostRegister_v2, (void* memory, size_t bytes, unsigned int flags),
           enlist(in, memory, bytes, flags))
SIM_DEFINE(cuMemHostUnregister, (void* memory), discharge(in, memory))
SIM_DEFINE(cuMemHostGetDevicePointer_v2, (CUdeviceptr * out, void* memory, unsigned int flags),
           device_pointer(in, out, memory, flags))
SIM_DEFINE(cuMemHostGetFlags, (unsigned int* flags, void* memory), get_flags(in, flags, memory))

}  // namespace cupool::sim
