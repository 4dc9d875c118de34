// Driver hooks of the program's own stream-ordered, managed and host memory, and of its code:
// untouched and counted (contract 12), but that a stream-ordered free may be given a block of ours.
#include <optional>

#include "entry/forward.h"
#include "entry/hooks.h"
#include "entry/watched.h"
#include "process/lifecycle.h"

using cupool::core::Allocator;
using cupool::process::engine;
using cupool::process::started_engine;
using cupool::stats::Counter;

namespace {

void count(Counter counter, CUresult result) {
  if (result != CUDA_SUCCESS) return;
  if (Allocator* allocator = started_engine()) {
    allocator->count_in_current_device(counter);
  } else if (cupool::core::Observer* observer = cupool::process::observer()) {
    observer->count(counter);
  }
}

// The program's own allocator may run out of memory because of what lies idle with us.
template <typename Call>
CUresult allocate_own(Counter counter, const Call& call) {
  Allocator* allocator = engine();
  CUresult result = call();
  if (result == CUDA_ERROR_OUT_OF_MEMORY && allocator != nullptr) {
    result = allocator->retry_anywhere(call);
  }
  count(counter, result);
  return result;
}

// A block of ours that the program frees in stream order, as it may do with legacy memory. Inside a
// capture the driver refuses legacy memory; a node that frees ours must not get into a graph.
std::optional<CUresult> free_ours(CUresult (*is_capturing)(CUstream, CUstreamCaptureStatus*),
                                  CUdeviceptr address, CUstream stream) {
  Allocator* allocator = engine();
  if (allocator == nullptr || !allocator->holds(address)) return std::nullopt;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (is_capturing != nullptr && is_capturing(stream, &status) == CUDA_SUCCESS &&
      status != CU_STREAM_CAPTURE_STATUS_NONE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return cupool::entry::watched_free(*allocator, address,
                                     [&] { return allocator->try_free_in_stream(address); });
}

// Code of the program needs device memory as well (contract 4).
template <typename Call>
CUresult load(const Call& call) {
  Allocator* allocator = engine();
  return allocator == nullptr ? call() : allocator->rescue(call);
}

}  // namespace

extern "C" {

CUresult cupool_hook_cuModuleLoad(CUmodule* module, const char* file) {
  CUPOOL_REAL_OR_RETURN(cuModuleLoad);
  return load([&] { return real.cuModuleLoad(module, file); });
}

CUresult cupool_hook_cuModuleLoadData(CUmodule* module, const void* image) {
  CUPOOL_REAL_OR_RETURN(cuModuleLoadData);
  return load([&] { return real.cuModuleLoadData(module, image); });
}

CUresult cupool_hook_cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int count,
                                        void* options, void** values) {
  CUPOOL_REAL_OR_RETURN(cuModuleLoadDataEx);
  return load([&] { return real.cuModuleLoadDataEx(module, image, count, options, values); });
}

CUresult cupool_hook_cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  CUPOOL_REAL_OR_RETURN(cuModuleLoadFatBinary);
  return load([&] { return real.cuModuleLoadFatBinary(module, image); });
}

CUresult cupool_hook_cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemAllocAsync);
  return allocate_own(Counter::own_async_malloc_calls_total,
                      [&] { return real.cuMemAllocAsync(address, bytes, stream); });
}

CUresult cupool_hook_cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t bytes, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemAllocAsync_ptsz);
  return allocate_own(Counter::own_async_malloc_calls_total,
                      [&] { return real.cuMemAllocAsync_ptsz(address, bytes, stream); });
}

CUresult cupool_hook_cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                                             CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemAllocFromPoolAsync);
  return allocate_own(Counter::own_async_malloc_calls_total,
                      [&] { return real.cuMemAllocFromPoolAsync(address, bytes, pool, stream); });
}

CUresult cupool_hook_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t bytes,
                                                  CUmemoryPool pool, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemAllocFromPoolAsync_ptsz);
  return allocate_own(Counter::own_async_malloc_calls_total, [&] {
    return real.cuMemAllocFromPoolAsync_ptsz(address, bytes, pool, stream);
  });
}

CUresult cupool_hook_cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemFreeAsync);
  if (const auto freed = free_ours(real.cuStreamIsCapturing, address, stream)) return *freed;
  const CUresult result = real.cuMemFreeAsync(address, stream);
  count(Counter::own_async_free_calls_total, result);
  return result;
}

CUresult cupool_hook_cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemFreeAsync_ptsz);
  if (const auto freed = free_ours(real.cuStreamIsCapturing_ptsz, address, stream)) return *freed;
  const CUresult result = real.cuMemFreeAsync_ptsz(address, stream);
  count(Counter::own_async_free_calls_total, result);
  return result;
}

CUresult cupool_hook_cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned int flags) {
  CUPOOL_REAL_OR_RETURN(cuMemAllocManaged);
  const CUresult result = allocate_own(Counter::managed_malloc_calls_total, [&] {
    return real.cuMemAllocManaged(address, bytes, flags);
  });
  Allocator* allocator = engine();
  if (allocator != nullptr && result == CUDA_SUCCESS) {
    allocator->managed_allocated(*address, bytes);
  }
  return result;
}

CUresult cupool_hook_cuMemHostAlloc(void** address, size_t bytes, unsigned int flags) {
  CUPOOL_REAL_OR_RETURN(cuMemHostAlloc);
  const CUresult result = real.cuMemHostAlloc(address, bytes, flags);
  count(Counter::host_malloc_calls_total, result);
  return result;
}

CUresult cupool_hook_cuMemAllocHost_v2(void** address, size_t bytes) {
  CUPOOL_REAL_OR_RETURN(cuMemAllocHost_v2);
  const CUresult result = real.cuMemAllocHost_v2(address, bytes);
  count(Counter::host_malloc_calls_total, result);
  return result;
}

}  // extern "C"
