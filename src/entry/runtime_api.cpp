// SPDX-License-Identifier: Apache-2.0
// Route 4: exported functions of libcudart, a short cut in front of the real ones. They serve from
// the cache and leave everything else, errors included, to the real function, which arrives again
// by cuGetProcAddress. So libcudart keeps its lazy initialisation and its last error, and no call
// is counted twice.
#include <driver_types.h>

#include <atomic>
#include <cstdint>

#include "engine/serve/hot_path.h"
#include "entry/bypass.h"
#include "entry/call_sites.h"
#include "entry/hooks.h"
#include "entry/real_runtime.h"
#include "entry/unsampled.h"
#include "process/lifecycle.h"
#include "trace/watch.h"
#include "util/clock.h"
#include "util/uncancelled.h"

using cupool::engine::Allocator;
using cupool::engine::Block;
using cupool::engine::Context;
using cupool::engine::Synchronization;
using cupool::entry::BypassScope;
using cupool::entry::CallSiteFacts;
using cupool::entry::facts_of;
using cupool::entry::known_at_once;
using cupool::entry::RealRuntimeFunction;
using cupool::stats::Counter;

namespace {

struct ShortCut {
  Allocator* allocator = nullptr;
  Context* context = nullptr;
  explicit operator bool() const { return context != nullptr; }
};

// The engine, where a call from there may have the hot path; else null.
[[gnu::always_inline]] inline Allocator* hot_engine(const char* symbol, const void* caller) {
  if (cupool::trace::watching()) return nullptr;
  const CallSiteFacts* site = known_at_once(symbol, caller);
  return site != nullptr && site->has_short_cut ? cupool::process::engine() : nullptr;
}

// The same for a call that is not sampled.
inline Allocator* engine_of_unsampled(const char* symbol, const void* caller) {
  const CallSiteFacts* site = known_at_once(symbol, caller);
  return site != nullptr && site->has_short_cut ? cupool::process::engine() : nullptr;
}

inline ShortCut short_cut(const CallSiteFacts& site) {
  ShortCut cut;
  if (!site.allows_short_cut()) return cut;
  cut.allocator = cupool::process::engine();
  if (cut.allocator != nullptr) cut.context = cut.allocator->registry().current();
  if (cut.context != nullptr && !cut.context->usable()) cut.context = nullptr;
  return cut;
}

// The names, each with one address.
constexpr char kMalloc[] = "cudaMalloc";
constexpr char kFree[] = "cudaFree";

// Serves from the cache, and notifies watchers. An NVTX range must begin before it is known who
// serves, so with NVTX the driver's hook serves.
[[gnu::always_inline]] inline bool serve(const ShortCut& cut, std::uint64_t bytes,
                                         CUdeviceptr* address) {
  const bool watched = cupool::trace::watching();
  if (watched && cupool::trace::watching(cupool::trace::kNvtx)) return false;
  const std::uint64_t start = watched ? cupool::util::now_ns() : 0;
  if (!cut.allocator->allocations().try_allocate_cached(*cut.context, bytes, address)) return false;
  if (watched) {
    cupool::trace::note_allocation({*address, bytes, cut.context->device().ordinal()}, start);
  }
  return true;
}

bool serve_pitched(const ShortCut& cut, std::size_t width, std::uint64_t rows, void** address,
                   std::size_t* pitch) {
  const auto layout = cut.allocator->queries().known_layout(width, rows);
  CUdeviceptr served = 0;
  if (!layout || !serve(cut, layout->bytes, &served)) return false;
  *address = reinterpret_cast<void*>(served);
  *pitch = layout->pitch;
  return true;
}

// The real function of the caller's runtime, called with the arguments that follow.
#define CUPOOL_REAL_RUNTIME_FOR(symbol, caller)        \
  const CallSiteFacts site = facts_of(symbol, caller); \
  const RealRuntimeFunction& real = site.real
#define CUPOOL_REAL_RUNTIME(symbol) CUPOOL_REAL_RUNTIME_FOR(#symbol, __builtin_return_address(0))
#define CUPOOL_CALL_REAL(type, ...)                        \
  (real.function == nullptr ? cudaErrorInitializationError \
                            : reinterpret_cast<type>(real.function)(__VA_ARGS__))

// The slow path.
[[gnu::noinline]] cudaError_t allocate_slowly(void** address, std::size_t bytes,
                                              const void* caller) {
  CUPOOL_REAL_RUNTIME_FOR(kMalloc, caller);
  if (address != nullptr && bytes != 0 && !site.bypassed) {
    CUdeviceptr served = 0;
    const ShortCut cut = short_cut(site);
    if (cut && serve(cut, bytes, &served)) {
      *address = reinterpret_cast<void*>(served);
      return cudaSuccess;
    }
  }
  if (bytes == 0) {
    Allocator* allocator = cupool::process::engine();
    if (allocator != nullptr)
      allocator->figures().count_in_current_device(Counter::malloc_zero_total);
  }
  const BypassScope scope(site.bypassed);
  return CUPOOL_CALL_REAL(cudaError_t(*)(void**, std::size_t), address, bytes);
}

[[gnu::noinline]] cudaError_t free_slowly(void* address, const void* caller) {
  CUPOOL_REAL_RUNTIME_FOR(kFree, caller);
  const auto device_address = reinterpret_cast<CUdeviceptr>(address);
  // Watchers must see a free before it happens, and once: the driver's hook notifies them.
  if (address != nullptr && !cupool::trace::watching()) {
    const cupool::util::Uncancelled throughout;
    const ShortCut cut = short_cut(site);
    if (cut && cut.allocator->frees().try_free_live(device_address)) return cudaSuccess;
  }
  // The real function reports errors: it reaches the same block and finds the same error.
  return CUPOOL_CALL_REAL(cudaError_t(*)(void*), address);
}

// Behind the hot path: what is not sampled has it, too.
[[gnu::noinline]] cudaError_t allocate_otherwise(void** address, std::size_t bytes,
                                                 const void* caller) {
  const bool unsampled = address != nullptr && cupool::entry::allocates_unsampled(bytes);
  Allocator* const allocator = unsampled ? engine_of_unsampled(kMalloc, caller) : nullptr;
  const CUdeviceptr served =
      allocator == nullptr ? 0 : cupool::entry::allocate_unsampled(*allocator, bytes);
  if (served == 0) return allocate_slowly(address, bytes, caller);
  *address = reinterpret_cast<void*>(served);
  return cudaSuccess;
}

[[gnu::noinline]] cudaError_t free_otherwise(void* address, const void* caller) {
  const auto device_address = reinterpret_cast<CUdeviceptr>(address);
  const bool unsampled = cupool::entry::frees_unsampled(device_address);
  Allocator* const allocator = unsampled ? engine_of_unsampled(kFree, caller) : nullptr;
  if (allocator != nullptr && allocator->registry().known_current() != nullptr &&
      cupool::entry::free_unsampled(*allocator, device_address) == CUDA_SUCCESS) {
    return cudaSuccess;
  }
  return free_slowly(address, caller);
}

}  // namespace

extern "C" {

CUPOOL_EXPORT cudaError_t cupool_hook_cudaMalloc(void** address,
                                                 std::size_t bytes) __asm__("cudaMalloc");
CUPOOL_EXPORT cudaError_t
cupool_hook_cudaMallocPitch(void** address, std::size_t* pitch, std::size_t width,
                            std::size_t height) __asm__("cudaMallocPitch");
CUPOOL_EXPORT cudaError_t cupool_hook_cudaMalloc3D(cudaPitchedPtr* pitched,
                                                   cudaExtent extent) __asm__("cudaMalloc3D");
CUPOOL_EXPORT cudaError_t cupool_hook_cudaFree(void* address) __asm__("cudaFree");
CUPOOL_EXPORT cudaError_t cupool_hook_cudaDeviceSynchronize() __asm__("cudaDeviceSynchronize");

cudaError_t cupool_hook_cudaMalloc(void** address, std::size_t bytes) {
  const void* const caller = __builtin_return_address(0);
  Allocator* const allocator = address == nullptr ? nullptr : hot_engine(kMalloc, caller);
  Context* const context = allocator == nullptr ? nullptr : allocator->registry().known_current();
  const CUdeviceptr served = context == nullptr ? 0 : allocate_hot(*context, bytes);
  if (served == 0) return allocate_otherwise(address, bytes, caller);
  *address = reinterpret_cast<void*>(served);
  return cudaSuccess;
}

cudaError_t cupool_hook_cudaMallocPitch(void** address, std::size_t* pitch, std::size_t width,
                                        std::size_t height) {
  CUPOOL_REAL_RUNTIME(cudaMallocPitch);
  if (address != nullptr && pitch != nullptr && !site.bypassed) {
    const ShortCut cut = short_cut(site);
    if (cut && serve_pitched(cut, width, height, address, pitch)) return cudaSuccess;
  }
  const BypassScope scope(site.bypassed);
  return CUPOOL_CALL_REAL(cudaError_t(*)(void**, std::size_t*, std::size_t, std::size_t), address,
                          pitch, width, height);
}

cudaError_t cupool_hook_cudaMalloc3D(cudaPitchedPtr* pitched, cudaExtent extent) {
  CUPOOL_REAL_RUNTIME(cudaMalloc3D);
  std::uint64_t rows = 0;
  if (pitched != nullptr && !site.bypassed &&
      !__builtin_mul_overflow(extent.height, extent.depth, &rows)) {
    const ShortCut cut = short_cut(site);
    if (cut && serve_pitched(cut, extent.width, rows, &pitched->ptr, &pitched->pitch)) {
      pitched->xsize = extent.width;
      pitched->ysize = extent.height;
      return cudaSuccess;
    }
  }
  const BypassScope scope(site.bypassed);
  return CUPOOL_CALL_REAL(cudaError_t(*)(cudaPitchedPtr*, cudaExtent), pitched, extent);
}

cudaError_t cupool_hook_cudaFree(void* address) {
  const void* const caller = __builtin_return_address(0);
  Allocator* const allocator = hot_engine(kFree, caller);
  if (allocator != nullptr && allocator->registry().known_current() != nullptr &&
      free_hot(*allocator, reinterpret_cast<CUdeviceptr>(address)) == CUDA_SUCCESS) {
    return cudaSuccess;
  }
  return free_otherwise(address, caller);
}

cudaError_t cupool_hook_cudaDeviceSynchronize() {
  CUPOOL_REAL_RUNTIME(cudaDeviceSynchronize);
  const cupool::util::Uncancelled throughout;
  const ShortCut cut = short_cut(site);
  const bool certain =
      cut && cut.allocator->registry().ask_for_current(*cut.context) == cut.context;
  if (certain) cut.allocator->default_pools().async().idle().covering_epoch(*cut.context);
  if (certain && cut.allocator->synchronization().of_context(
                     cut.context, Synchronization::Failure::repeated,
                     [] { return cupool::cuda::driver()->cuCtxSynchronize(); }) == CUDA_SUCCESS) {
    return cudaSuccess;
  }
  return CUPOOL_CALL_REAL(cudaError_t(*)(), );
}

}  // extern "C"
