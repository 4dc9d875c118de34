// Driver hooks of allocations, frees and questions about memory.
#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/allocator_hot.h"
#include "entry/bypass.h"
#include "entry/forward.h"
#include "entry/hooks.h"
#include "entry/observed.h"
#include "entry/watched.h"
#include "process/lifecycle.h"

using cupool::core::Allocator;
using cupool::core::Block;
using cupool::core::Context;
using cupool::core::IpcImports;
using cupool::entry::watched_allocation;
using cupool::entry::watched_free;
using cupool::process::engine;
using cupool::process::started_engine;

namespace {

// Rows of an allocation that the driver pads as it padded the first one.
CUresult allocate_pitched(Allocator& allocator, const cupool::cuda::Driver& real,
                          const void* caller, CUdeviceptr* address, size_t* pitch, size_t width,
                          size_t height, unsigned int element_bytes) {
  const bool plain = address != nullptr && pitch != nullptr && height != 0 &&
                     (element_bytes == 4 || element_bytes == 8 || element_bytes == 16);
  const std::uint64_t known = plain ? allocator.known_pitch(width) : 0;
  std::uint64_t bytes = 0;
  if (known != 0 && !__builtin_mul_overflow(known, height, &bytes) &&
      !cupool::entry::is_bypassed(caller)) {
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

// The block that `address` lies in, if it is one of ours, or the memory of another process that is
// open there. What a block has beyond the bytes that were asked for is nobody's to the program, as
// a freed block is.
struct Found {
  const Block* live = nullptr;
  bool nobodys = false;
  std::optional<IpcImports::Seen> imported;
};
Found block_at(Allocator& allocator, CUdeviceptr base, CUdeviceptr address) {
  const Block* live = allocator.live_block(base);
  if (live == nullptr) {
    return {nullptr, allocator.is_freed_block(base), allocator.imports().find(base)};
  }
  if (address - base >= live->requested) return {nullptr, true, std::nullopt};
  return {live, false, std::nullopt};
}

// The same where only the driver knows the base.
Found find_block(Allocator& allocator, CUdeviceptr address) {
  return block_at(allocator, allocator.base_of(address), address);
}

// What the driver says of legacy memory, where it says something else of pool memory (contract 6).
void answer_as_legacy(const Found& found, CUpointer_attribute attribute, void* value) {
  const Block* block = found.live;
  if (block == nullptr && !found.imported) return;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(value) =
          block != nullptr ? block->context->handle() : found.imported->context;
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(value) = block != nullptr ? static_cast<std::uint64_t>(block->requested)
                                                      : found.imported->requested;
      break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *static_cast<CUmemoryPool*>(value) = nullptr;
      break;
    // The driver has written the whole value, of whatever width; what differs is in its low byte.
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      if (block != nullptr && block->context->device().can_share(*block)) {
        *static_cast<unsigned char*>(value) = 1;
      }
      break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *static_cast<unsigned char*>(value) = 0;
      break;
    default:
      break;
  }
}

// The engine, where a call may have the hot path; else null.
[[gnu::always_inline]] inline Allocator* hot_engine() {
  return cupool::trace::watching() ? nullptr : engine();
}

// What the hot path leaves.
[[gnu::noinline]] CUresult allocate_slowly(CUdeviceptr* address, size_t bytes, const void* caller) {
  CUPOOL_REAL_OR_RETURN(cuMemAlloc_v2);
  Allocator* allocator = started_engine();
  if (allocator == nullptr) {
    return cupool::entry::observed_allocation([&] { return bytes; }, address,
                                              [&] { return real.cuMemAlloc_v2(address, bytes); });
  }
  return watched_allocation(*allocator, bytes, address, [&] {
    if (!cupool::entry::is_bypassed(caller)) {
      if (const auto served = allocator->try_allocate(bytes, address)) return *served;
    }
    return allocator->pass_allocation([&] { return bytes; }, address,
                                      [&] { return real.cuMemAlloc_v2(address, bytes); });
  });
}

[[gnu::noinline]] CUresult free_slowly(CUdeviceptr address) {
  CUPOOL_REAL_OR_RETURN(cuMemFree_v2);
  Allocator* allocator = engine();
  if (allocator == nullptr) {
    return cupool::entry::observed_free(address, [&] { return real.cuMemFree_v2(address); });
  }
  if (address == 0) {
    allocator->count_null_free();
    return real.cuMemFree_v2(address);
  }
  return watched_free(*allocator, address, [&] {
    if (const auto served = allocator->try_free(address)) return *served;
    return allocator->pass_free(address, [&] { return real.cuMemFree_v2(address); });
  });
}

}  // namespace

extern "C" {

CUresult cupool_hook_cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  const void* const caller = __builtin_return_address(0);
  Allocator* const allocator = hot_engine();
  Context* const context = allocator == nullptr ? nullptr : allocator->registry().known_current();
  if (context == nullptr || address == nullptr || cupool::entry::is_bypassed(caller)) {
    return allocate_slowly(address, bytes, caller);
  }
  const Block* const block = allocator->take_hot(*context, bytes);
  if (block == nullptr) return allocate_slowly(address, bytes, caller);
  *address = block->address;
  return CUDA_SUCCESS;
}

CUresult cupool_hook_cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width,
                                        size_t height, unsigned int element_bytes) {
  CUPOOL_REAL_OR_RETURN(cuMemAllocPitch_v2);
  Allocator* allocator = started_engine();
  if (allocator == nullptr) {
    return cupool::entry::observed_allocation(
        [&] { return pitch == nullptr ? 0 : *pitch * height; }, address,
        [&] { return real.cuMemAllocPitch_v2(address, pitch, width, height, element_bytes); });
  }
  const void* caller = __builtin_return_address(0);
  return watched_allocation(*allocator, width * height, address, [&] {
    return allocate_pitched(*allocator, real, caller, address, pitch, width, height, element_bytes);
  });
}

CUresult cupool_hook_cuMemFree_v2(CUdeviceptr address) {
  Allocator* const allocator = hot_engine();
  if (allocator != nullptr) {
    if (const auto freed = allocator->free_hot(address)) return *freed;
  }
  return free_slowly(address);
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
  size_t found_bytes = 0;
  const CUresult result = real.cuMemGetAddressRange_v2(&found_base, &found_bytes, address);
  if (result != CUDA_SUCCESS) return result;
  if (Allocator* allocator = engine()) {
    const Found found = block_at(*allocator, found_base, address);
    if (found.nobodys) return CUDA_ERROR_NOT_FOUND;
    if (found.live != nullptr) found_bytes = found.live->requested;
    if (found.imported) found_bytes = found.imported->requested;
  }
  if (base != nullptr) *base = found_base;
  if (bytes != nullptr) *bytes = found_bytes;
  return CUDA_SUCCESS;
}

CUresult cupool_hook_cuPointerGetAttribute(void* value, CUpointer_attribute attribute,
                                           CUdeviceptr address) {
  CUPOOL_REAL_OR_RETURN(cuPointerGetAttribute);
  Allocator* allocator = engine();
  if (allocator == nullptr) return real.cuPointerGetAttribute(value, attribute, address);
  const Found found = find_block(*allocator, address);
  if (found.nobodys) return CUDA_ERROR_INVALID_VALUE;  // `value` stays as it is
  const CUresult result = real.cuPointerGetAttribute(value, attribute, address);
  if (result == CUDA_SUCCESS) answer_as_legacy(found, attribute, value);
  return result;
}

CUresult cupool_hook_cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes,
                                            void** values, CUdeviceptr address) {
  CUPOOL_REAL_OR_RETURN(cuPointerGetAttributes);
  const CUresult result = real.cuPointerGetAttributes(count, attributes, values, address);
  Allocator* allocator = engine();
  if (allocator == nullptr || result != CUDA_SUCCESS) return result;
  const Found found = find_block(*allocator, address);
  if (found.nobodys) {
    // The driver has no error here: it answers for an address that is none of CUDA's.
    const int no_device_memory = 0;
    const auto ask = [&] {
      return real.cuPointerGetAttributes(count, attributes, values,
                                         reinterpret_cast<CUdeviceptr>(&no_device_memory));
    };
    const CUresult answer = ask();
    return answer == CUDA_SUCCESS ? answer : ask();  // a second attempt: this question is ours
  }
  for (unsigned int index = 0; index < count; ++index) {
    answer_as_legacy(found, attributes[index], values[index]);
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
