// SPDX-License-Identifier: Apache-2.0
// Route 4 for stream-ordered memory (CUPOOL_ASYNC=serve): short cuts as in entry/runtime_api. On
// sixteen threads the shared runtime alone takes microseconds for a pair.
#include <driver_types.h>

#include <cstddef>
#include <cstdint>

#include "engine/serve/allocator.h"
#include "entry/bypass.h"
#include "entry/call_sites.h"
#include "entry/hooks.h"
#include "process/lifecycle.h"
#include "trace/other_memory.h"

using cupool::engine::Allocator;
using cupool::engine::AsyncBlocks;
using cupool::engine::AsyncMemory;
using cupool::entry::BypassScope;
using cupool::entry::CallSiteFacts;
using cupool::entry::facts_of;
using cupool::entry::known_at_once;

namespace {

// The names, each with one address.
constexpr char kMallocAsync[] = "cudaMallocAsync";
constexpr char kMallocAsyncOfThread[] = "cudaMallocAsync_ptsz";
constexpr char kFreeAsync[] = "cudaFreeAsync";
constexpr char kFreeAsyncOfThread[] = "cudaFreeAsync_ptsz";

// What is watched is noted in the driver's hook. Default streams are the driver's.
[[gnu::always_inline]] inline Allocator* hot_engine_of(const char* symbol, const void* caller,
                                                       cudaStream_t stream) {
  if (reinterpret_cast<std::uintptr_t>(stream) <= 2 || cupool::trace::watching_other_kinds()) {
    return nullptr;
  }
  const CallSiteFacts* const site = known_at_once(symbol, caller);
  Allocator* const allocator =
      site != nullptr && site->has_short_cut ? cupool::process::engine() : nullptr;
  return allocator != nullptr && allocator->registry().known_current() != nullptr ? allocator
                                                                                  : nullptr;
}

[[gnu::always_inline]] inline cudaError_t allocate_in_order(const char* symbol, const void* caller,
                                                            void** address, std::size_t bytes,
                                                            cudaStream_t stream) {
  if (AsyncMemory::is_on() && address != nullptr) {
    Allocator* const allocator = hot_engine_of(symbol, caller, stream);
    const CUdeviceptr memory =
        allocator == nullptr
            ? 0
            : allocator->default_pools().async().try_allocate(bytes, nullptr, stream);
    if (memory != 0) {
      *address = reinterpret_cast<void*>(memory);
      return cudaSuccess;
    }
  }
  const CallSiteFacts site = facts_of(symbol, caller);
  if (site.real.function == nullptr) return cudaErrorInitializationError;
  const BypassScope scope(site.bypassed);
  return reinterpret_cast<cudaError_t (*)(void**, std::size_t, cudaStream_t)>(site.real.function)(
      address, bytes, stream);
}

// The real function reports errors: it reaches the same block and finds the same error.
[[gnu::always_inline]] inline cudaError_t free_in_order(const char* symbol, const void* caller,
                                                        void* address, cudaStream_t stream) {
  if (AsyncBlocks::any()) {
    Allocator* const allocator = hot_engine_of(symbol, caller, stream);
    if (allocator != nullptr &&
        allocator->default_pools().async().try_free(reinterpret_cast<CUdeviceptr>(address),
                                                    stream) == CUDA_SUCCESS) {
      return cudaSuccess;
    }
  }
  const CallSiteFacts site = facts_of(symbol, caller);
  if (site.real.function == nullptr) return cudaErrorInitializationError;
  return reinterpret_cast<cudaError_t (*)(void*, cudaStream_t)>(site.real.function)(address,
                                                                                    stream);
}

}  // namespace

extern "C" {

CUPOOL_EXPORT cudaError_t cupool_hook_cudaMallocAsync(
    void** address, std::size_t bytes, cudaStream_t stream) __asm__("cudaMallocAsync");
CUPOOL_EXPORT cudaError_t cupool_hook_cudaMallocAsync_ptsz(
    void** address, std::size_t bytes, cudaStream_t stream) __asm__("cudaMallocAsync_ptsz");
CUPOOL_EXPORT cudaError_t cupool_hook_cudaFreeAsync(void* address,
                                                    cudaStream_t stream) __asm__("cudaFreeAsync");
CUPOOL_EXPORT cudaError_t
cupool_hook_cudaFreeAsync_ptsz(void* address, cudaStream_t stream) __asm__("cudaFreeAsync_ptsz");

cudaError_t cupool_hook_cudaMallocAsync(void** address, std::size_t bytes, cudaStream_t stream) {
  return allocate_in_order(kMallocAsync, __builtin_return_address(0), address, bytes, stream);
}

cudaError_t cupool_hook_cudaMallocAsync_ptsz(void** address, std::size_t bytes,
                                             cudaStream_t stream) {
  return allocate_in_order(kMallocAsyncOfThread, __builtin_return_address(0), address, bytes,
                           stream);
}

cudaError_t cupool_hook_cudaFreeAsync(void* address, cudaStream_t stream) {
  return free_in_order(kFreeAsync, __builtin_return_address(0), address, stream);
}

cudaError_t cupool_hook_cudaFreeAsync_ptsz(void* address, cudaStream_t stream) {
  return free_in_order(kFreeAsyncOfThread, __builtin_return_address(0), address, stream);
}

}  // extern "C"
