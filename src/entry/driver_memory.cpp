// Driver hooks of allocations, frees and questions about memory.
#include <algorithm>
#include <cstdint>

#include "entry/forward.h"
#include "entry/hooks.h"
#include "process/lifecycle.h"

using cupool::core::Allocator;
using cupool::core::Block;
using cupool::process::engine;
using cupool::process::started_engine;

namespace {

// Rows of an allocation that the driver pads as it padded the first one.
CUresult allocate_pitched(Allocator& allocator, const cupool::cuda::Driver& real,
                          CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                          unsigned int element_bytes) {
  const bool plain = address != nullptr && pitch != nullptr && height != 0 &&
                     (element_bytes == 4 || element_bytes == 8 || element_bytes == 16);
  const std::uint64_t known = plain ? allocator.known_pitch(width) : 0;
  std::uint64_t bytes = 0;
  if (known != 0 && !__builtin_mul_overflow(known, height, &bytes)) {
    if (const auto served = allocator.try_allocate(bytes, address)) {
      if (*served == CUDA_SUCCESS) *pitch = known;
      return *served;
    }
  }
  const CUresult result = allocator.pass_allocation(
      [&] { return pitch == nullptr ? 0 : *pitch * height; }, address,
      [&] { return real.cuMemAllocPitch_v2(address, pitch, width, height, element_bytes); });
  if (result == CUDA_SUCCESS && plain) allocator.learn_pitch(width, *pitch);
  return result;
}

// The block that `address` lies in, if it is one of ours. The driver knows its base.
struct Found {
  const Block* live = nullptr;
  bool freed = false;
};
Found find_block(Allocator& allocator, const cupool::cuda::Driver& real, CUdeviceptr address) {
  CUdeviceptr base = 0;
  if (real.cuMemGetAddressRange_v2(&base, nullptr, address) != CUDA_SUCCESS) return {};
  return {allocator.live_block(base), allocator.is_freed_block(base)};
}

// What the driver says of legacy memory, where it says something else of pool memory (contract 6).
void answer_as_legacy(const Block& block, CUpointer_attribute attribute, void* value) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(value) = block.context->handle();
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(value) = block.requested;
      break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *static_cast<CUmemoryPool*>(value) = nullptr;
      break;
    default:
      break;
  }
}

}  // namespace

extern "C" {

CUresult cupool_hook_cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  CUPOOL_REAL_OR_RETURN(cuMemAlloc_v2);
  Allocator* allocator = started_engine();
  if (allocator == nullptr) return real.cuMemAlloc_v2(address, bytes);
  if (const auto served = allocator->try_allocate(bytes, address)) return *served;
  return allocator->pass_allocation([&] { return bytes; }, address,
                                    [&] { return real.cuMemAlloc_v2(address, bytes); });
}

CUresult cupool_hook_cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width,
                                        size_t height, unsigned int element_bytes) {
  CUPOOL_REAL_OR_RETURN(cuMemAllocPitch_v2);
  Allocator* allocator = started_engine();
  if (allocator == nullptr) {
    return real.cuMemAllocPitch_v2(address, pitch, width, height, element_bytes);
  }
  return allocate_pitched(*allocator, real, address, pitch, width, height, element_bytes);
}

CUresult cupool_hook_cuMemFree_v2(CUdeviceptr address) {
  CUPOOL_REAL_OR_RETURN(cuMemFree_v2);
  Allocator* allocator = engine();
  if (allocator == nullptr) return real.cuMemFree_v2(address);
  if (address == 0) {
    allocator->count_null_free();
    return real.cuMemFree_v2(address);
  }
  if (const auto served = allocator->try_free(address)) return *served;
  return allocator->pass_free(address, [&] { return real.cuMemFree_v2(address); });
}

CUresult cupool_hook_cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  CUPOOL_REAL_OR_RETURN(cuMemGetInfo_v2);
  Allocator* allocator = engine();
  if (allocator != nullptr) allocator->registry().current();  // gives lost memory back first
  const CUresult result = real.cuMemGetInfo_v2(free_bytes, total_bytes);
  // Contract 5: what lies idle with us is free for the program.
  if (allocator != nullptr && result == CUDA_SUCCESS && free_bytes != nullptr) {
    // Other threads may free between the two questions: never more than there is.
    size_t total = 0;
    size_t ignored = 0;
    *free_bytes += allocator->idle_bytes();
    if (real.cuMemGetInfo_v2(&ignored, &total) == CUDA_SUCCESS) {
      *free_bytes = std::min(*free_bytes, total);
    }
  }
  return result;
}

CUresult cupool_hook_cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes,
                                             CUdeviceptr address) {
  CUPOOL_REAL_OR_RETURN(cuMemGetAddressRange_v2);
  CUdeviceptr found_base = 0;
  const CUresult result =
      real.cuMemGetAddressRange_v2(base == nullptr ? &found_base : base, bytes, address);
  Allocator* allocator = engine();
  if (allocator == nullptr || result != CUDA_SUCCESS) return result;
  if (base != nullptr) found_base = *base;
  if (allocator->is_freed_block(found_base)) return CUDA_ERROR_NOT_FOUND;
  const Block* block = allocator->live_block(found_base);
  if (block != nullptr && bytes != nullptr) *bytes = block->requested;
  return result;
}

CUresult cupool_hook_cuPointerGetAttribute(void* value, CUpointer_attribute attribute,
                                           CUdeviceptr address) {
  CUPOOL_REAL_OR_RETURN(cuPointerGetAttribute);
  const CUresult result = real.cuPointerGetAttribute(value, attribute, address);
  Allocator* allocator = engine();
  if (allocator == nullptr || result != CUDA_SUCCESS) return result;
  const Found found = find_block(*allocator, real, address);
  if (found.freed) return CUDA_ERROR_INVALID_VALUE;
  if (found.live != nullptr) answer_as_legacy(*found.live, attribute, value);
  return result;
}

CUresult cupool_hook_cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes,
                                            void** values, CUdeviceptr address) {
  CUPOOL_REAL_OR_RETURN(cuPointerGetAttributes);
  const CUresult result = real.cuPointerGetAttributes(count, attributes, values, address);
  Allocator* allocator = engine();
  if (allocator == nullptr || result != CUDA_SUCCESS) return result;
  const Found found = find_block(*allocator, real, address);
  if (found.live == nullptr) return result;
  for (unsigned int index = 0; index < count; ++index) {
    answer_as_legacy(*found.live, attributes[index], values[index]);
  }
  return result;
}

CUresult cupool_hook_cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                                           CUdeviceptr address) {
  CUPOOL_REAL_OR_RETURN(cuPointerSetAttribute);
  const CUresult result = real.cuPointerSetAttribute(value, attribute, address);
  Allocator* allocator = engine();
  if (allocator != nullptr && result == CUDA_SUCCESS &&
      attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
    allocator->mark_shared_outside(address);
  }
  return result;
}

CUresult cupool_hook_cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  CUPOOL_REAL_OR_RETURN(cuIpcGetMemHandle);
  const CUresult result = real.cuIpcGetMemHandle(handle, address);
  Allocator* allocator = engine();
  if (allocator != nullptr && result == CUDA_SUCCESS) allocator->mark_shared_outside(address);
  return result;
}

CUresult cupool_hook_cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, size_t bytes,
                                                   int handle_type, unsigned long long flags) {
  CUPOOL_REAL_OR_RETURN(cuMemGetHandleForAddressRange);
  const CUresult result =
      real.cuMemGetHandleForAddressRange(handle, address, bytes, handle_type, flags);
  Allocator* allocator = engine();
  if (allocator != nullptr && result == CUDA_SUCCESS) allocator->mark_shared_outside(address);
  return result;
}

}  // extern "C"
