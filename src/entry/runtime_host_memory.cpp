// SPDX-License-Identifier: Apache-2.0
// Route 4 for page-locked memory: short cuts as in entry/runtime_api. A block belongs to the flags
// that its allocation gave the driver, and how a runtime chooses them is not documented: a call
// site has no short cut until its runtime has been seen to do it.
#include <driver_types.h>

#include <cstddef>

#include "engine/serve/allocator.h"
#include "entry/bypass.h"
#include "entry/call_sites.h"
#include "entry/hooks.h"
#include "process/lifecycle.h"
#include "trace/other_memory.h"

using cupool::engine::Allocator;
using cupool::entry::BypassScope;
using cupool::entry::CallSiteFacts;
using cupool::entry::facts_of;
using cupool::entry::known_at_once;

namespace {

// The names, each with one address.
constexpr char kMallocHost[] = "cudaMallocHost";
constexpr char kHostAlloc[] = "cudaHostAlloc";
constexpr char kFreeHost[] = "cudaFreeHost";

// What is watched is noted in the driver's hook.
inline bool has_short_cut(const CallSiteFacts* site) {
  return site != nullptr && site->has_short_cut && !cupool::trace::watching_other_kinds();
}

// Memory of the cache; null: no side effect.
[[gnu::always_inline]] inline void* pop_by_short_cut(const char* symbol, const void* caller,
                                                     std::size_t bytes, unsigned flags) {
  const CallSiteFacts* const site = known_at_once(symbol, caller);
  if (!has_short_cut(site) || site->of_toolkit) return nullptr;
  Allocator* const allocator = cupool::process::engine();
  return allocator == nullptr ? nullptr
                              : allocator->host().try_allocate(bytes, site->host_kinds->of(flags));
}

// `call(real)` calls the real function.
template <typename Call>
cudaError_t allocate_by_runtime(const char* symbol, void** address, std::size_t bytes,
                                unsigned flags, const void* caller, const Call& call) {
  const CallSiteFacts site = facts_of(symbol, caller);
  if (site.real.function == nullptr) return cudaErrorInitializationError;
  const BypassScope scope(site.bypassed);
  const cudaError_t result = call(site.real.function);
  if (result != cudaSuccess || bytes == 0 || site.host_kinds == nullptr) return result;
  if (Allocator* const allocator = cupool::process::engine()) {
    site.host_kinds->learn(flags, allocator->host().kind_of(*address, bytes));
  }
  return result;
}

// As of device memory: a short cut only where the thread has a context. The real function finds the
// errors.
[[gnu::noinline]] cudaError_t free_by_runtime(void* host, const void* caller, bool was_tried) {
  const CallSiteFacts site = facts_of(kFreeHost, caller);
  if (site.real.function == nullptr) return cudaErrorInitializationError;
  Allocator* const allocator =
      was_tried || !has_short_cut(&site) || site.bypassed ? nullptr : cupool::process::engine();
  if (allocator != nullptr && allocator->registry().current() != nullptr &&
      allocator->host().try_free(host) == CUDA_SUCCESS) {
    return cudaSuccess;
  }
  return reinterpret_cast<cudaError_t (*)(void*)>(site.real.function)(host);
}

}  // namespace

extern "C" {

CUPOOL_EXPORT cudaError_t cupool_hook_cudaMallocHost(void** address,
                                                     std::size_t bytes) __asm__("cudaMallocHost");
CUPOOL_EXPORT cudaError_t cupool_hook_cudaHostAlloc(void** address, std::size_t bytes,
                                                    unsigned flags) __asm__("cudaHostAlloc");
CUPOOL_EXPORT cudaError_t cupool_hook_cudaFreeHost(void* host) __asm__("cudaFreeHost");

cudaError_t cupool_hook_cudaMallocHost(void** address, std::size_t bytes) {
  const void* const caller = __builtin_return_address(0);
  void* const memory =
      address == nullptr ? nullptr : pop_by_short_cut(kMallocHost, caller, bytes, 0);
  if (memory != nullptr) {
    *address = memory;
    return cudaSuccess;
  }
  return allocate_by_runtime(kMallocHost, address, bytes, 0, caller, [&](void* real) {
    return reinterpret_cast<cudaError_t (*)(void**, std::size_t)>(real)(address, bytes);
  });
}

cudaError_t cupool_hook_cudaHostAlloc(void** address, std::size_t bytes, unsigned flags) {
  const void* const caller = __builtin_return_address(0);
  void* const memory =
      address == nullptr ? nullptr : pop_by_short_cut(kHostAlloc, caller, bytes, flags);
  if (memory != nullptr) {
    *address = memory;
    return cudaSuccess;
  }
  return allocate_by_runtime(kHostAlloc, address, bytes, flags, caller, [&](void* real) {
    return reinterpret_cast<cudaError_t (*)(void**, std::size_t, unsigned)>(real)(address, bytes,
                                                                                  flags);
  });
}

cudaError_t cupool_hook_cudaFreeHost(void* host) {
  const void* const caller = __builtin_return_address(0);
  const CallSiteFacts* const site = known_at_once(kFreeHost, caller);
  Allocator* const allocator = has_short_cut(site) ? cupool::process::engine() : nullptr;
  const bool tried = allocator != nullptr && allocator->registry().known_current() != nullptr;
  if (tried && allocator->host().try_free(host) == CUDA_SUCCESS) return cudaSuccess;
  return free_by_runtime(host, caller, tried);
}

}  // extern "C"
