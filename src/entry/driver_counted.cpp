// SPDX-License-Identifier: Apache-2.0
// Driver hooks of the program's own stream-ordered, managed and page-locked memory and its arrays:
// counted, and the driver's (contract 12), but for what caches of cupool's serve
// (CUPOOL_ASYNC=serve, contract 14). A device's default pool may be kept. A stream-ordered free may
// also receive a block of cudaMalloc's.
#include <optional>

#include "cuda/capture_state.h"
#include "engine/context/submission.h"
#include "engine/host/host_class.h"
#include "engine/reclaim/host_targets.h"
#include "engine/reclaim/pinned_memory.h"
#include "entry/call_sites.h"
#include "entry/caller.h"
#include "entry/default_stream.h"
#include "entry/forward.h"
#include "entry/hooks.h"
#include "entry/pool_blocks.h"
#include "entry/watched.h"
#include "process/lifecycle.h"

using cupool::engine::allocated_in;
using cupool::engine::Allocator;
using cupool::engine::AsyncBlocks;
using cupool::engine::AsyncMemory;
using cupool::engine::Context;
using cupool::engine::Device;
using cupool::engine::HostTargets;
using cupool::engine::OutOfMemory;
using cupool::engine::Patience;
using cupool::engine::Submission;
using cupool::entry::legacy;
using cupool::entry::note_current_pool_block;
using cupool::entry::note_pool_block;
using cupool::entry::per_thread;
using cupool::entry::watched_other_allocation;
using cupool::entry::watched_other_free;
using cupool::entry::watching_engine;
using cupool::process::engine;
using cupool::process::started_engine;
using cupool::stats::Counter;
using cupool::trace::MemoryKind;

namespace {

void count(Counter counter, CUresult result) {
  if (result != CUDA_SUCCESS) return;
  if (Allocator* allocator = started_engine()) {
    allocator->figures().count_in_current_device(counter);
  } else if (cupool::observe::Observer* observer = cupool::process::observer()) {
    observer->count(counter);
  }
}

// Page-locked memory of the cache, without a driver call.
bool pop_host(void** address, std::size_t bytes, unsigned kind, const void* caller) {
  Allocator* const allocator = engine();
  if (allocator == nullptr || address == nullptr || cupool::trace::watching_other_kinds() ||
      cupool::entry::is_of_its_own(caller)) {
    return false;
  }
  void* const memory = allocator->host().try_allocate(bytes, kind);
  if (memory == nullptr) return false;
  *address = memory;
  return true;
}

// Memory that a library of the toolkit pins for its kernels is internal, and the driver serves it.
template <typename Real>
CUresult allocate_host(void** address, std::size_t bytes, unsigned kind, const void* caller,
                       const Real& real) {
  HostTargets::made();
  Allocator* const allocator = started_engine();
  CUresult result = CUDA_SUCCESS;
  if (allocator == nullptr) {
    result = real(bytes);
    count(Counter::host_malloc_calls_total, result);
  } else {
    const bool own = cupool::entry::is_of_its_own(caller);
    Patience patience;
    const auto allocate = [&] {
      const CUresult answer = allocator->host().allocate(
          address, bytes, own ? cupool::engine::kNoHostKind : kind, real, patience);
      patience.wants(cupool::engine::page_table_bytes(bytes));  // of device memory
      return answer;
    };
    result = watched_other_allocation(
        *allocator, MemoryKind::page_locked, bytes,
        [&] { return address == nullptr ? 0 : reinterpret_cast<std::uint64_t>(*address); },
        [&] {
          const CUresult first = allocate();
          return first != CUDA_ERROR_OUT_OF_MEMORY
                     ? first
                     : allocator->out_of_memory().retry_anywhere(allocate, patience);
        });
  }
  // A block has its range already, in whole pages.
  const auto is_block = [&] {
    return allocator != nullptr && allocator->host().blocks().find(*address) != nullptr;
  };
  if (result == CUDA_SUCCESS && !is_block() && !cupool::entry::is_cuda_library(caller)) {
    cupool::engine::PinnedMemory::add(*address, bytes);
  }
  return result;
}

// The program's own allocator may run out of memory because of cupool's idle memory. `retry` makes
// the further attempts.
template <typename Call, typename Retry>
CUresult allocate_own(Counter counter, std::size_t bytes, const Call& call, const Retry& retry) {
  CUresult result = call();
  Allocator* const allocator = result == CUDA_ERROR_OUT_OF_MEMORY ? started_engine() : nullptr;
  if (allocator != nullptr) {
    Patience patience;
    patience.wants(bytes);
    result = retry(*allocator, patience);
  }
  count(counter, result);
  return result;
}

// The program's array. Out of memory, it is tried again once idle memory was given back.
template <typename Call>
CUresult create_array(const Call& call) {
  CUresult result = call();
  Allocator* const allocator = result == CUDA_ERROR_OUT_OF_MEMORY ? started_engine() : nullptr;
  if (allocator != nullptr) result = allocator->out_of_memory().retry(call);
  count(Counter::array_calls_total, result);
  return result;
}

// Memory that was freed in the same stream, without a driver call. False: no side effect.
[[gnu::always_inline]] inline bool pop_in_stream(CUdeviceptr* address, CUmemoryPool pool,
                                                 std::size_t bytes, const void* caller,
                                                 CUstream stream) {
  if (!AsyncMemory::is_on() || address == nullptr || cupool::trace::watching_other_kinds()) {
    return false;
  }
  Allocator* const allocator = engine();
  if (allocator == nullptr || cupool::entry::is_bypassed(caller)) return false;
  const CUdeviceptr memory = allocator->default_pools().async().try_allocate(bytes, pool, stream);
  if (memory != 0) *address = memory;
  return memory != 0;
}

template <typename Real>
CUresult allocate_unwatched_in_stream(CUdeviceptr* address, CUmemoryPool pool, std::size_t bytes,
                                      const void* caller, CUstream stream, const Real& real) {
  using Served = AsyncMemory::Served;
  Served served = Served::no;
  if (AsyncMemory::is_on() && address != nullptr && !cupool::entry::is_bypassed(caller)) {
    if (Allocator* const serving = engine()) {
      served = serving->default_pools().async().allocate(address, bytes, pool, stream, real);
    }
  }
  if (served == Served::from_cache) {
    allocated_in(*cupool::cuda::driver(), stream);
    return CUDA_SUCCESS;
  }
  CUresult result = CUDA_SUCCESS;
  if (served == Served::by_driver) {
    if (Allocator* const serving = engine()) serving->default_pools().serves_blocks();
    count(Counter::own_async_malloc_calls_total, CUDA_SUCCESS);
  } else {
    const auto as_asked = [&] { return real(bytes); };
    const auto call = [&] {
      Allocator* const serving = AsyncMemory::is_on() ? engine() : nullptr;
      return serving == nullptr ? as_asked() : serving->default_pools().async().noted(as_asked);
    };
    // A pool that is named may be any device's. The current one is that of the stream's device.
    result = allocate_own(
        Counter::own_async_malloc_calls_total, bytes, call,
        [&](Allocator& serving, Patience& patience) {
          Context* const context = pool == nullptr ? serving.streams().context_of(stream) : nullptr;
          if (!OutOfMemory::may_fit(context, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
          const Device* const device = context == nullptr ? nullptr : &context->device();
          return serving.out_of_memory().retry_anywhere(call, patience, device);
        });
  }
  if (result != CUDA_SUCCESS || bytes == 0) return result;
  allocated_in(*cupool::cuda::driver(), stream);
  Allocator* const allocator = engine();
  if (served == Served::no && AsyncBlocks::any() && allocator != nullptr) {
    allocator->default_pools().async().forget_stale(*address);
  }
  if (allocator != nullptr && allocator->default_pools().are_concerned(pool) &&
      !cupool::entry::is_bypassed(caller)) {
    allocator->default_pools().allocated(pool);
  }
  return result;
}

// Where memory of a successful call begins; 0 in a capture, where it is a node of a graph.
std::uint64_t begin_of_async(const cupool::cuda::Driver& driver, const CUdeviceptr* address,
                             CUstream stream) {
  const bool lives = address != nullptr && cupool::cuda::is_capturing(driver, stream) == false;
  return lives ? *address : 0;
}

// An allocation in the order of `stream`, an explicit handle, from `pool` or (null) the current one
// of the device.
template <typename Real>
CUresult allocate_in_stream(const cupool::cuda::Driver& driver, CUdeviceptr* address,
                            CUmemoryPool pool, std::size_t bytes, const void* caller,
                            CUstream stream, const Real& real) {
  const auto call = [&] {
    return allocate_unwatched_in_stream(address, pool, bytes, caller, stream, real);
  };
  Allocator* const allocator = watching_engine();
  if (allocator == nullptr) return call();
  return watched_other_allocation(
      *allocator, MemoryKind::stream_ordered, bytes,
      [&] { return begin_of_async(driver, address, stream); }, call);
}

// A free of stream-ordered memory that needs no driver call. `std::nullopt`: no side effect.
[[gnu::always_inline]] inline std::optional<CUresult> push_unwatched(CUdeviceptr address,
                                                                     CUstream stream) {
  if (!AsyncBlocks::any()) return std::nullopt;
  Allocator* const allocator = engine();
  return allocator == nullptr ? std::nullopt
                              : allocator->default_pools().async().try_free(address, stream);
}

// The same, if nothing watches.
[[gnu::always_inline]] inline std::optional<CUresult> push_in_stream(CUdeviceptr address,
                                                                     CUstream stream) {
  return cupool::trace::watching_other_kinds() ? std::nullopt : push_unwatched(address, stream);
}

// Makes the free that push_in_stream() did not.
template <typename Call>
CUresult watched_free_in_stream(CUdeviceptr address, CUstream stream, const Call& call) {
  if (!cupool::trace::watching_other_kinds() || engine() == nullptr) return call();
  return watched_other_free(address, [&] {
    const auto freed = push_unwatched(address, stream);
    return freed ? *freed : call();
  });
}

// Memory of cudaMalloc may be freed in stream order as well. A call of `free` shows whether a
// capture forbids that; `named` is the stream's handle in other functions.
CUresult free_in_stream(CUresult (*free)(CUdeviceptr, CUstream), CUdeviceptr address,
                        CUstream stream, CUstream named) {
  const auto call = [&] { return free(address, stream); };
  Allocator* const allocator = engine();
  cupool::observe::Observer* const observer =
      allocator == nullptr ? cupool::process::observer() : nullptr;
  if (observer != nullptr && observer->holds(address)) return observer->free(address, call);
  if (allocator == nullptr || !allocator->queries().knows(address)) {
    const CUresult result = allocator == nullptr
                                ? call()
                                : allocator->default_pools().async().free_by_driver(address, call);
    count(Counter::own_async_free_calls_total, result);
    return result;
  }
  if (const auto refused = allocator->frees().refuse_in_stream(address, free, stream))
    return *refused;
  return cupool::entry::watched_free(*allocator, address, [&] {
    if (const auto freed = allocator->frees().try_free_in_stream(address, named)) return *freed;
    return allocator->pass_through().free(address, call);
  });
}

}  // namespace

extern "C" {

CUresult cupool_hook_cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  const void* const caller = __builtin_return_address(0);
  if (pop_in_stream(address, nullptr, bytes, caller, legacy(stream))) return CUDA_SUCCESS;
  CUPOOL_REAL_OR_RETURN(cuMemAllocAsync);
  const CUresult result = allocate_in_stream(
      real, address, nullptr, bytes, caller, legacy(stream),
      [&](size_t wanted) { return real.cuMemAllocAsync(address, wanted, stream); });
  if (result == CUDA_SUCCESS) note_current_pool_block(real, *address, legacy(stream));
  return result;
}

CUresult cupool_hook_cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t bytes, CUstream stream) {
  const void* const caller = __builtin_return_address(0);
  if (pop_in_stream(address, nullptr, bytes, caller, per_thread(stream))) return CUDA_SUCCESS;
  CUPOOL_REAL_OR_RETURN(cuMemAllocAsync_ptsz);
  const CUresult result = allocate_in_stream(
      real, address, nullptr, bytes, caller, per_thread(stream),
      [&](size_t wanted) { return real.cuMemAllocAsync_ptsz(address, wanted, stream); });
  if (result == CUDA_SUCCESS) note_current_pool_block(real, *address, per_thread(stream));
  return result;
}

CUresult cupool_hook_cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                                             CUstream stream) {
  const void* const caller = __builtin_return_address(0);
  const bool named = pool != nullptr;
  if (named && pop_in_stream(address, pool, bytes, caller, legacy(stream))) return CUDA_SUCCESS;
  CUPOOL_REAL_OR_RETURN(cuMemAllocFromPoolAsync);
  if (!named) return real.cuMemAllocFromPoolAsync(address, bytes, pool, stream);
  const CUresult result = allocate_in_stream(
      real, address, pool, bytes, caller, legacy(stream),
      [&](size_t wanted) { return real.cuMemAllocFromPoolAsync(address, wanted, pool, stream); });
  if (result == CUDA_SUCCESS) note_pool_block(real, pool, *address, legacy(stream));
  return result;
}

CUresult cupool_hook_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t bytes,
                                                  CUmemoryPool pool, CUstream stream) {
  const void* const caller = __builtin_return_address(0);
  const bool named = pool != nullptr;
  if (named && pop_in_stream(address, pool, bytes, caller, per_thread(stream))) return CUDA_SUCCESS;
  CUPOOL_REAL_OR_RETURN(cuMemAllocFromPoolAsync_ptsz);
  if (!named) return real.cuMemAllocFromPoolAsync_ptsz(address, bytes, pool, stream);
  const CUresult result = allocate_in_stream(
      real, address, pool, bytes, caller, per_thread(stream), [&](size_t wanted) {
        return real.cuMemAllocFromPoolAsync_ptsz(address, wanted, pool, stream);
      });
  if (result == CUDA_SUCCESS) note_pool_block(real, pool, *address, per_thread(stream));
  return result;
}

CUresult cupool_hook_cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  if (const auto freed = push_in_stream(address, legacy(stream))) return *freed;
  CUPOOL_REAL_OR_RETURN(cuMemFreeAsync);
  return watched_free_in_stream(address, legacy(stream), [&] {
    const Submission submission(real, legacy(stream), "cuMemFreeAsync");
    return free_in_stream(real.cuMemFreeAsync, address, stream, stream);
  });
}

CUresult cupool_hook_cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  if (const auto freed = push_in_stream(address, per_thread(stream))) return *freed;
  CUPOOL_REAL_OR_RETURN(cuMemFreeAsync_ptsz);
  return watched_free_in_stream(address, per_thread(stream), [&] {
    const Submission submission(real, per_thread(stream), "cuMemFreeAsync_ptsz");
    return free_in_stream(real.cuMemFreeAsync_ptsz, address, stream, per_thread(stream));
  });
}

CUresult cupool_hook_cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned int flags) {
  CUPOOL_REAL_OR_RETURN(cuMemAllocManaged);
  const auto call = [&] {
    const auto allocate = [&] { return real.cuMemAllocManaged(address, bytes, flags); };
    const CUresult result =
        allocate_own(Counter::managed_malloc_calls_total, bytes, allocate,
                     [&](Allocator& serving, Patience& patience) {
                       return OutOfMemory::may_fit(serving.registry().current(), bytes)
                                  ? serving.out_of_memory().retry_anywhere(allocate, patience)
                                  : CUDA_ERROR_OUT_OF_MEMORY;
                     });
    Allocator* allocator = engine();
    if (allocator != nullptr && result == CUDA_SUCCESS) {
      allocator->pass_through().managed_allocated(*address, bytes);
    }
    return result;
  };
  Allocator* const watched = watching_engine();
  return watched == nullptr
             ? call()
             : watched_other_allocation(
                   *watched, MemoryKind::managed, bytes,
                   [&] { return address == nullptr ? CUdeviceptr{0} : *address; }, call);
}

CUresult cupool_hook_cuMemHostAlloc(void** address, size_t bytes, unsigned int flags) {
  const void* const caller = __builtin_return_address(0);
  const unsigned kind = cupool::engine::host_kind(flags);
  if (pop_host(address, bytes, kind, caller)) return CUDA_SUCCESS;
  CUPOOL_REAL_OR_RETURN(cuMemHostAlloc);
  return allocate_host(address, bytes, kind, caller,
                       [&](size_t wanted) { return real.cuMemHostAlloc(address, wanted, flags); });
}

// Old code has it by name (LLVM's OpenMP for GPUs). The driver serves it.
CUresult cupool_hook_cuMemAllocHost(void** address, unsigned int bytes) {
  const void* const caller = __builtin_return_address(0);
  CUPOOL_REAL_OR_RETURN(cuMemAllocHost);
  return allocate_host(address, bytes, cupool::engine::kNoHostKind, caller, [&](size_t wanted) {
    return real.cuMemAllocHost(address, static_cast<unsigned int>(wanted));
  });
}

CUresult cupool_hook_cuMemAllocHost_v2(void** address, size_t bytes) {
  const void* const caller = __builtin_return_address(0);
  constexpr unsigned kKind = cupool::engine::kPlainHostKind;
  if (pop_host(address, bytes, kKind, caller)) return CUDA_SUCCESS;
  CUPOOL_REAL_OR_RETURN(cuMemAllocHost_v2);
  return allocate_host(address, bytes, kKind, caller,
                       [&](size_t wanted) { return real.cuMemAllocHost_v2(address, wanted); });
}

CUresult cupool_hook_cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* shape) {
  CUPOOL_REAL_OR_RETURN(cuArrayCreate_v2);
  return create_array([&] { return real.cuArrayCreate_v2(array, shape); });
}

CUresult cupool_hook_cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* shape) {
  CUPOOL_REAL_OR_RETURN(cuArray3DCreate_v2);
  return create_array([&] { return real.cuArray3DCreate_v2(array, shape); });
}

CUresult cupool_hook_cuMipmappedArrayCreate(CUmipmappedArray* array,
                                            const CUDA_ARRAY3D_DESCRIPTOR* shape, unsigned levels) {
  CUPOOL_REAL_OR_RETURN(cuMipmappedArrayCreate);
  return create_array([&] { return real.cuMipmappedArrayCreate(array, shape, levels); });
}

}  // extern "C"
