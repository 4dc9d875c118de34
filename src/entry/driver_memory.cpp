// SPDX-License-Identifier: Apache-2.0
// Driver hooks of allocations, frees and questions about memory (contract 1, 3, 5 and 6).
#include <algorithm>
#include <cstdint>

#include "cuda/scopes.h"
#include "engine/serve/hot_path.h"
#include "engine/serve/unordered_free.h"
#include "entry/call_sites.h"
#include "entry/forward.h"
#include "entry/hooks.h"
#include "entry/memory_hooks.h"
#include "entry/observed.h"
#include "entry/unsampled.h"
#include "entry/watched.h"
#include "process/lifecycle.h"

using cupool::engine::Allocator;
using cupool::engine::Block;
using cupool::engine::Context;
using cupool::engine::FoundMemory;
using cupool::engine::Patience;
using cupool::engine::PointerQueries;
using cupool::entry::watched_allocation;
using cupool::entry::watched_free;
using cupool::process::engine;
using cupool::process::started_engine;

namespace {

// Pitched allocations, with the padding that the driver used for the first one.
CUresult allocate_pitched(Allocator& allocator, const cupool::cuda::Driver& real,
                          const void* caller, CUdeviceptr* address, size_t* pitch, size_t width,
                          size_t height, unsigned int element_bytes) {
  const bool plain = address != nullptr && pitch != nullptr && height != 0 &&
                     (element_bytes == 4 || element_bytes == 8 || element_bytes == 16);
  Patience patience;
  const auto layout = plain ? allocator.queries().known_layout(width, height) : std::nullopt;
  if (layout && !cupool::entry::is_bypassed(caller)) {
    if (const auto served =
            allocator.allocations().try_allocate(layout->bytes, address, patience)) {
      if (*served == CUDA_SUCCESS) *pitch = layout->pitch;
      return *served;
    }
  }
  std::uint64_t wanted = 0;
  if (__builtin_mul_overflow(width, height, &wanted)) wanted = ~std::uint64_t{0};
  const CUresult result = allocator.pass_through().allocate(
      wanted, [&] { return *pitch * height; }, address, patience,
      [&] { return real.cuMemAllocPitch_v2(address, pitch, width, height, element_bytes); });
  if (result == CUDA_SUCCESS && plain) allocator.queries().learn_pitch(width, *pitch);
  return result;
}

// An address that is not CUDA's, for which the driver answers as it would for nobody's memory. Not
// const, since a constant page would be one of the file.
CUdeviceptr no_memory() {
  alignas(4096) static char page[4096];
  return reinterpret_cast<CUdeviceptr>(page);
}

// The engine for a question about memory. None within a call of cupool's own: a library that hooks
// the driver asks there what the driver does, and this thread may hold locks of the engine.
Allocator* asked() {
  return cupool::cuda::RelaxedCaptureScope::is_open() ? nullptr : engine();
}

// The engine if a call may take the hot path; else null.
[[gnu::always_inline]] inline Allocator* hot_engine() {
  return cupool::trace::watching() ? nullptr : engine();
}

// The slow path.
[[gnu::noinline]] CUresult allocate_slowly(CUdeviceptr* address, size_t bytes, const void* caller) {
  if (address != nullptr && cupool::entry::allocates_unsampled(bytes) &&
      !cupool::entry::is_bypassed(caller)) {
    Allocator* const serving = engine();
    const CUdeviceptr served =
        serving == nullptr ? 0 : cupool::entry::allocate_unsampled(*serving, bytes);
    if (served != 0) {
      *address = served;
      return CUDA_SUCCESS;
    }
  }
  CUPOOL_REAL_OR_RETURN(cuMemAlloc_v2);
  Allocator* allocator = started_engine();
  if (allocator == nullptr) {
    return cupool::entry::observed_allocation([&] { return bytes; }, address,
                                              [&] { return real.cuMemAlloc_v2(address, bytes); });
  }
  return watched_allocation(*allocator, bytes, address, [&] {
    Patience patience;
    if (!cupool::entry::is_bypassed(caller)) {
      if (const auto served = allocator->allocations().try_allocate(bytes, address, patience))
        return *served;
    }
    return allocator->pass_through().allocate(
        bytes, [&] { return bytes; }, address, patience,
        [&] { return real.cuMemAlloc_v2(address, bytes); });
  });
}

[[gnu::noinline]] CUresult free_slowly(CUdeviceptr address) {
  if (cupool::entry::frees_unsampled(address)) {
    Allocator* const serving = engine();
    const auto freed =
        serving == nullptr ? std::nullopt : cupool::entry::free_unsampled(*serving, address);
    if (freed) return *freed;
  }
  CUPOOL_REAL_OR_RETURN(cuMemFree_v2);
  Allocator* allocator = engine();
  if (allocator == nullptr) {
    return cupool::entry::observed_free(address, [&] { return real.cuMemFree_v2(address); });
  }
  if (address == 0) {
    allocator->figures().count_null_free();
    return real.cuMemFree_v2(address);
  }
  return watched_free(*allocator, address, [&] {
    if (const auto served = allocator->frees().try_free(address)) return *served;
    return allocator->pass_through().free(
        address, [&] { return cupool::engine::free_unordered(real, address); });
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
  const CUdeviceptr served = allocate_hot(*context, bytes);
  if (served == 0) return allocate_slowly(address, bytes, caller);
  *address = served;
  return CUDA_SUCCESS;
}

CUresult cupool_hook_cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width,
                                        size_t height, unsigned int element_bytes) {
  CUPOOL_REAL_OR_RETURN(cuMemAllocPitch_v2);
  Allocator* allocator = started_engine();
  if (allocator == nullptr) {
    return cupool::entry::observed_allocation(
        [&] { return *pitch * height; }, address,
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
    if (const auto freed = free_hot(*allocator, address)) return *freed;
  }
  return free_slowly(address);
}

CUresult cupool_hook_cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  CUPOOL_REAL_OR_RETURN(cuMemGetInfo_v2);
  Allocator* allocator = engine();
  if (allocator != nullptr) {
    allocator->registry().current();  // releases lost memory first
    allocator->out_of_memory().trim_if_unclear();
  }
  size_t own_total = 0;
  size_t* const total = total_bytes != nullptr ? total_bytes : &own_total;
  const CUresult result = real.cuMemGetInfo_v2(free_bytes, total);
  // Contract 5: idle memory counts as free. Other threads may free between the two queries; the sum
  // is limited to the total.
  if (allocator != nullptr && result == CUDA_SUCCESS && free_bytes != nullptr) {
    *free_bytes = std::min<size_t>(*free_bytes + allocator->figures().idle_bytes(), *total);
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
  if (Allocator* allocator = asked()) {
    const FoundMemory found = allocator->queries().find(found_base, address);
    if (found.nobodys) return CUDA_ERROR_NOT_FOUND;
    if (found.served()) found_bytes = found.requested();
  }
  if (base != nullptr) *base = found_base;
  if (bytes != nullptr) *bytes = found_bytes;
  return CUDA_SUCCESS;
}

CUresult cupool_hook_cuPointerGetAttribute(void* value, CUpointer_attribute attribute,
                                           CUdeviceptr address) {
  CUPOOL_REAL_OR_RETURN(cuPointerGetAttribute);
  Allocator* allocator = asked();
  if (allocator == nullptr) return real.cuPointerGetAttribute(value, attribute, address);
  const FoundMemory found = allocator->queries().find(address);
  if (found.nobodys) return CUDA_ERROR_INVALID_VALUE;  // `value` stays unchanged
  const CUresult result = real.cuPointerGetAttribute(value, attribute, address);
  if (result == CUDA_SUCCESS) found.answer_as_legacy(attribute, value);
  return result;
}

CUresult cupool_hook_cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes,
                                            void** values, CUdeviceptr address) {
  CUPOOL_REAL_OR_RETURN(cuPointerGetAttributes);
  Allocator* allocator = asked();
  if (allocator == nullptr) return real.cuPointerGetAttributes(count, attributes, values, address);
  const FoundMemory found = allocator->queries().find(address);
  // Here the driver returns no error for an address that is not CUDA's.
  const CUdeviceptr asked_about = found.nobodys ? no_memory() : address;
  const CUresult result = real.cuPointerGetAttributes(count, attributes, values, asked_about);
  if (result != CUDA_SUCCESS || found.nobodys) return result;
  for (unsigned int index = 0; index < count; ++index) {
    found.answer_as_legacy(attributes[index], values[index]);
  }
  return result;
}

CUresult cupool_hook_cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                                           CUdeviceptr address) {
  CUPOOL_REAL_OR_RETURN(cuPointerSetAttribute);
  const void* const caller = __builtin_return_address(0);
  Allocator* allocator = engine();
  if (allocator != nullptr && allocator->queries().find(address).nobodys) {
    return real.cuPointerSetAttribute(value, attribute, no_memory());
  }
  const CUresult result = real.cuPointerSetAttribute(value, attribute, address);
  if (allocator != nullptr && result == CUDA_SUCCESS &&
      attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
    allocator->queries().mark_shared_outside(address, PointerQueries::KnownBy::address,
                                             cupool::entry::known_until(caller));
  }
  return result;
}

CUresult cupool_hook_cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, size_t bytes,
                                                   int handle_type, unsigned long long flags) {
  CUPOOL_REAL_OR_RETURN(cuMemGetHandleForAddressRange);
  const void* const caller = __builtin_return_address(0);
  Allocator* allocator = engine();
  if (allocator != nullptr && allocator->queries().find(address).nobodys) {
    return real.cuMemGetHandleForAddressRange(handle, no_memory(), bytes, handle_type, flags);
  }
  const CUresult result =
      real.cuMemGetHandleForAddressRange(handle, address, bytes, handle_type, flags);
  if (allocator != nullptr && result == CUDA_SUCCESS)
    allocator->queries().mark_shared_outside(address, PointerQueries::KnownBy::descriptor,
                                             cupool::entry::known_until(caller));
  return result;
}

}  // extern "C"
