// SPDX-License-Identifier: Apache-2.0
// Driver hooks of the program's own stream-ordered, managed and host memory: untouched and counted
// (contract 12). A stream-ordered free may also receive a block of cupool's.
#include "engine/context/submission.h"
#include "engine/host/host_class.h"
#include "engine/reclaim/host_targets.h"
#include "engine/reclaim/pinned_memory.h"
#include "entry/call_sites.h"
#include "entry/caller.h"
#include "entry/default_stream.h"
#include "entry/forward.h"
#include "entry/hooks.h"
#include "entry/watched.h"
#include "process/lifecycle.h"

using cupool::engine::Allocator;
using cupool::engine::HostTargets;
using cupool::engine::Patience;
using cupool::engine::Submission;
using cupool::entry::legacy;
using cupool::entry::per_thread;
using cupool::process::engine;
using cupool::process::started_engine;
using cupool::stats::Counter;

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
  if (allocator == nullptr || address == nullptr || cupool::entry::is_of_its_own(caller)) {
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
    result =
        allocator->host().allocate(address, bytes, own ? cupool::engine::kNoHostKind : kind, real);
  }
  if (result == CUDA_SUCCESS && !cupool::entry::is_cuda_library(caller)) {
    cupool::engine::PinnedMemory::add(*address, bytes);
  }
  return result;
}

// The program's own allocator may run out of memory because of cupool's idle memory.
template <typename Call>
CUresult allocate_own(Counter counter, std::size_t bytes, const Call& call) {
  Allocator* allocator = engine();
  CUresult result = call();
  if (result == CUDA_ERROR_OUT_OF_MEMORY && allocator != nullptr) {
    Patience patience;
    patience.wants(bytes);
    result = allocator->out_of_memory().retry_anywhere(call, patience);
  }
  count(counter, result);
  return result;
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
    const CUresult result = call();
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
  CUPOOL_REAL_OR_RETURN(cuMemAllocAsync);
  return allocate_own(Counter::own_async_malloc_calls_total, bytes,
                      [&] { return real.cuMemAllocAsync(address, bytes, stream); });
}

CUresult cupool_hook_cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t bytes, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemAllocAsync_ptsz);
  return allocate_own(Counter::own_async_malloc_calls_total, bytes,
                      [&] { return real.cuMemAllocAsync_ptsz(address, bytes, stream); });
}

CUresult cupool_hook_cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                                             CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemAllocFromPoolAsync);
  const CUresult result = allocate_own(Counter::own_async_malloc_calls_total, bytes, [&] {
    return real.cuMemAllocFromPoolAsync(address, bytes, pool, stream);
  });
  if (result == CUDA_SUCCESS) HostTargets::note_pool_block(real, pool, *address);
  return result;
}

CUresult cupool_hook_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t bytes,
                                                  CUmemoryPool pool, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemAllocFromPoolAsync_ptsz);
  const CUresult result = allocate_own(Counter::own_async_malloc_calls_total, bytes, [&] {
    return real.cuMemAllocFromPoolAsync_ptsz(address, bytes, pool, stream);
  });
  if (result == CUDA_SUCCESS) HostTargets::note_pool_block(real, pool, *address);
  return result;
}

CUresult cupool_hook_cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemFreeAsync);
  const Submission submission(real, legacy(stream), "cuMemFreeAsync");
  return free_in_stream(real.cuMemFreeAsync, address, stream, stream);
}

CUresult cupool_hook_cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemFreeAsync_ptsz);
  const Submission submission(real, per_thread(stream), "cuMemFreeAsync_ptsz");
  return free_in_stream(real.cuMemFreeAsync_ptsz, address, stream, per_thread(stream));
}

CUresult cupool_hook_cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned int flags) {
  CUPOOL_REAL_OR_RETURN(cuMemAllocManaged);
  const CUresult result = allocate_own(Counter::managed_malloc_calls_total, bytes, [&] {
    return real.cuMemAllocManaged(address, bytes, flags);
  });
  Allocator* allocator = engine();
  if (allocator != nullptr && result == CUDA_SUCCESS) {
    allocator->pass_through().managed_allocated(*address, bytes);
  }
  return result;
}

CUresult cupool_hook_cuMemHostAlloc(void** address, size_t bytes, unsigned int flags) {
  const void* const caller = __builtin_return_address(0);
  const unsigned kind = cupool::engine::host_kind(flags);
  if (pop_host(address, bytes, kind, caller)) return CUDA_SUCCESS;
  CUPOOL_REAL_OR_RETURN(cuMemHostAlloc);
  return allocate_host(address, bytes, kind, caller,
                       [&](size_t wanted) { return real.cuMemHostAlloc(address, wanted, flags); });
}

CUresult cupool_hook_cuMemAllocHost_v2(void** address, size_t bytes) {
  const void* const caller = __builtin_return_address(0);
  constexpr unsigned kKind = cupool::engine::kPlainHostKind;
  if (pop_host(address, bytes, kKind, caller)) return CUDA_SUCCESS;
  CUPOOL_REAL_OR_RETURN(cuMemAllocHost_v2);
  return allocate_host(address, bytes, kKind, caller,
                       [&](size_t wanted) { return real.cuMemAllocHost_v2(address, wanted); });
}

}  // extern "C"
