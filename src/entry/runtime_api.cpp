// Route 4: exported functions of libcudart, a short cut in front of the real ones. They serve what
// lies ready in the cache and leave everything else, errors included, to the real function, which
// comes back by way of cuGetProcAddress. So libcudart keeps its lazy initialisation and its
// last-error state, and no call is counted twice.
#include <driver_types.h>

#include <atomic>
#include <cstdint>
#include <new>

#include "core/allocator_hot.h"
#include "entry/bypass.h"
#include "entry/hooks.h"
#include "entry/real_runtime.h"
#include "process/lifecycle.h"
#include "trace/watch.h"
#include "util/clock.h"

using cupool::core::Allocator;
using cupool::core::Block;
using cupool::core::Context;
using cupool::entry::BypassScope;
using cupool::entry::is_bypassed;
using cupool::entry::real_runtime_function;
using cupool::entry::RealRuntimeFunction;
using cupool::stats::Counter;

namespace {

// From CUDA 12.0 on cudaSetDevice makes the device's context current at once, so that the driver's
// current context is the one that the real function would use. Before, it need not be.
constexpr int kEagerSetDevice = 12000;

struct ShortCut {
  Allocator* allocator = nullptr;
  Context* context = nullptr;
  explicit operator bool() const { return context != nullptr; }
};

// What is known of the code that calls one of these functions, in one place for all that the tables
// behind it say. Written once for each call site, and never freed.
struct CallSite {
  const void* caller;
  const char* symbol;  // a literal, compared by address: one call may reach several functions
  RealRuntimeFunction real;
  bool bypassed;
  bool has_short_cut;  // not bypassed, and the runtime is one of those that allow it
};
constexpr unsigned kCallSitesLog2 = 9;
std::atomic<const CallSite*> call_sites[1u << kCallSitesLog2];

// Inside a call of a bypassed library all calls are bypassed, which is not to be remembered.
thread_local unsigned calls_bypassed;
class Bypass {
 public:
  explicit Bypass(bool bypass) : bypass_(bypass), scope_(bypass) { calls_bypassed += bypass; }
  ~Bypass() { calls_bypassed -= bypass_; }
  Bypass(const Bypass&) = delete;
  Bypass& operator=(const Bypass&) = delete;

 private:
  const bool bypass_;
  const BypassScope scope_;
};

[[gnu::noinline]] void find_call_site(std::atomic<const CallSite*>& place, CallSite* site) {
  site->real = real_runtime_function(site->symbol, site->caller);
  site->bypassed = is_bypassed(site->caller);
  site->has_short_cut = !site->bypassed && site->real.runtime_version >= kEagerSetDevice;
  // Where two meet in a place the second one is looked up each time: right, only slower.
  if (site->real.function == nullptr || calls_bypassed != 0 || place.load() != nullptr) return;
  const auto* kept = new (std::nothrow) CallSite(*site);
  const CallSite* expected = nullptr;
  if (!place.compare_exchange_strong(expected, kept, std::memory_order_acq_rel)) delete kept;
}

[[gnu::always_inline]] inline std::atomic<const CallSite*>& place_of(const void* caller) {
  const auto mixed = reinterpret_cast<std::uintptr_t>(caller) * std::uint64_t{0x9e3779b97f4a7c15};
  return call_sites[mixed >> (64 - kCallSitesLog2)];
}

// Null: it is to be looked up.
[[gnu::always_inline]] inline const CallSite* known_call_site(const char* symbol,
                                                              const void* caller) {
  const CallSite* known = place_of(caller).load(std::memory_order_acquire);
  const bool same = known != nullptr && known->caller == caller && known->symbol == symbol;
  return same && calls_bypassed == 0 ? known : nullptr;
}

// `not_kept`: for one that is not in the table.
inline const CallSite& call_site(const char* symbol, const void* caller, CallSite* not_kept) {
  const CallSite* known = known_call_site(symbol, caller);
  if (known != nullptr) return *known;
  std::atomic<const CallSite*>& place = place_of(caller);
  not_kept->caller = caller;
  not_kept->symbol = symbol;
  find_call_site(place, not_kept);
  return *not_kept;
}

// The engine, where a call from there may have the hot path; else null.
[[gnu::always_inline]] inline Allocator* hot_engine(const char* symbol, const void* caller) {
  const CallSite* site = known_call_site(symbol, caller);
  const bool hot = site != nullptr && site->has_short_cut && !cupool::trace::watching();
  return hot ? cupool::process::engine() : nullptr;
}

inline ShortCut short_cut(const RealRuntimeFunction& real) {
  ShortCut cut;
  if (real.runtime_version < kEagerSetDevice) return cut;
  cut.allocator = cupool::process::engine();
  if (cut.allocator != nullptr) cut.context = cut.allocator->registry().current();
  if (cut.context != nullptr && !cut.context->usable()) cut.context = nullptr;
  return cut;
}

// The names, each at one address.
constexpr char kMalloc[] = "cudaMalloc";
constexpr char kFree[] = "cudaFree";

// Serves from the cache, and tells who watches. A range of NVTX has to begin before it is known who
// serves: there the driver's hook does it.
[[gnu::always_inline]] inline bool serve(const ShortCut& cut, std::uint64_t bytes,
                                         CUdeviceptr* address) {
  const bool watched = cupool::trace::watching();
  if (watched && cupool::trace::watching(cupool::trace::kNvtx)) return false;
  const std::uint64_t start = watched ? cupool::util::now_ns() : 0;
  if (!cut.allocator->try_allocate_cached(*cut.context, bytes, address)) return false;
  if (watched) {
    cupool::trace::note_allocation({*address, bytes, cut.context->device().ordinal()}, start);
  }
  return true;
}

bool serve_pitched(const ShortCut& cut, std::size_t width, std::uint64_t rows, void** address,
                   std::size_t* pitch) {
  const std::uint64_t known = cut.allocator->known_pitch(width);
  std::uint64_t bytes = 0;
  CUdeviceptr served = 0;
  if (known == 0 || rows == 0 || __builtin_mul_overflow(known, rows, &bytes) ||
      !serve(cut, bytes, &served)) {
    return false;
  }
  *address = reinterpret_cast<void*>(served);
  *pitch = known;
  return true;
}

// The real function of the caller's runtime, called with the arguments that follow.
#define CUPOOL_REAL_RUNTIME_FOR(symbol, caller)                \
  CallSite not_kept;                                           \
  const CallSite& site = call_site(symbol, caller, &not_kept); \
  const RealRuntimeFunction& real = site.real
#define CUPOOL_REAL_RUNTIME(symbol) CUPOOL_REAL_RUNTIME_FOR(#symbol, __builtin_return_address(0))
#define CUPOOL_CALL_REAL(type, ...)                        \
  (real.function == nullptr ? cudaErrorInitializationError \
                            : reinterpret_cast<type>(real.function)(__VA_ARGS__))

// What the hot path leaves.
[[gnu::noinline]] cudaError_t allocate_slowly(void** address, std::size_t bytes,
                                              const void* caller) {
  CUPOOL_REAL_RUNTIME_FOR(kMalloc, caller);
  if (address != nullptr && bytes != 0 && !site.bypassed) {
    CUdeviceptr served = 0;
    const ShortCut cut = short_cut(real);
    if (cut && serve(cut, bytes, &served)) {
      *address = reinterpret_cast<void*>(served);
      return cudaSuccess;
    }
  }
  if (bytes == 0) {
    Allocator* allocator = cupool::process::engine();
    if (allocator != nullptr) allocator->count_in_current_device(Counter::malloc_zero_total);
  }
  const Bypass scope(site.bypassed);
  return CUPOOL_CALL_REAL(cudaError_t(*)(void**, std::size_t), address, bytes);
}

[[gnu::noinline]] cudaError_t free_slowly(void* address, const void* caller) {
  CUPOOL_REAL_RUNTIME_FOR(kFree, caller);
  const auto device_address = reinterpret_cast<CUdeviceptr>(address);
  // Who watches has to know of a free before it happens, and only once: the driver's hook does
  // that.
  if (address != nullptr && !cupool::trace::watching()) {
    const ShortCut cut = short_cut(real);
    if (cut && cut.allocator->try_free_live(device_address)) return cudaSuccess;
  }
  // An error is the real function's to report: it comes to the same block and finds the same.
  return CUPOOL_CALL_REAL(cudaError_t(*)(void*), address);
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
  Block* const block = context == nullptr ? nullptr : allocator->take_hot(*context, bytes);
  if (block == nullptr) return allocate_slowly(address, bytes, caller);
  *address = reinterpret_cast<void*>(static_cast<CUdeviceptr>(block->address));
  return cudaSuccess;
}

cudaError_t cupool_hook_cudaMallocPitch(void** address, std::size_t* pitch, std::size_t width,
                                        std::size_t height) {
  CUPOOL_REAL_RUNTIME(cudaMallocPitch);
  if (address != nullptr && pitch != nullptr && !site.bypassed) {
    const ShortCut cut = short_cut(real);
    if (cut && serve_pitched(cut, width, height, address, pitch)) return cudaSuccess;
  }
  const Bypass scope(site.bypassed);
  return CUPOOL_CALL_REAL(cudaError_t(*)(void**, std::size_t*, std::size_t, std::size_t), address,
                          pitch, width, height);
}

cudaError_t cupool_hook_cudaMalloc3D(cudaPitchedPtr* pitched, cudaExtent extent) {
  CUPOOL_REAL_RUNTIME(cudaMalloc3D);
  std::uint64_t rows = 0;
  if (pitched != nullptr && !site.bypassed &&
      !__builtin_mul_overflow(extent.height, extent.depth, &rows)) {
    const ShortCut cut = short_cut(real);
    if (cut && serve_pitched(cut, extent.width, rows, &pitched->ptr, &pitched->pitch)) {
      pitched->xsize = extent.width;
      pitched->ysize = extent.height;
      return cudaSuccess;
    }
  }
  const Bypass scope(site.bypassed);
  return CUPOOL_CALL_REAL(cudaError_t(*)(cudaPitchedPtr*, cudaExtent), pitched, extent);
}

cudaError_t cupool_hook_cudaFree(void* address) {
  const void* const caller = __builtin_return_address(0);
  Allocator* const allocator = hot_engine(kFree, caller);
  if (allocator != nullptr && allocator->registry().known_current() != nullptr &&
      allocator->free_hot(reinterpret_cast<CUdeviceptr>(address)) == CUDA_SUCCESS) {
    return cudaSuccess;
  }
  return free_slowly(address, caller);
}

cudaError_t cupool_hook_cudaDeviceSynchronize() {
  CUPOOL_REAL_RUNTIME(cudaDeviceSynchronize);
  const cupool::cuda::Driver* driver = cupool::cuda::driver();
  const ShortCut cut = short_cut(real);
  const bool certain = cut && driver != nullptr &&
                       cut.allocator->registry().ask_for_current(cut.context) == cut.context;
  if (certain && cut.allocator->synchronize(cut.context, false, [&] {
        return driver->cuCtxSynchronize();
      }) == CUDA_SUCCESS) {
    return cudaSuccess;
  }
  return CUPOOL_CALL_REAL(cudaError_t(*)(), );
}

}  // extern "C"
