// Driver hooks of work that touches host memory, untouched and noted: a free has to wait for it as
// a legacy free does (contract 2). Graphs are among them, since one may hold copies and callbacks.
#include "entry/caller.h"
#include "entry/forward.h"
#include "entry/hooks.h"
#include "process/lifecycle.h"
#include "util/log.h"

using cupool::core::Allocator;
using cupool::core::Context;
using cupool::core::HostReachable;
using cupool::process::engine;
using cupool::process::started_engine;

namespace {

enum class DefaultStream { legacy, per_thread };

void note(const cupool::cuda::Driver& real, CUstream stream, DefaultStream default_stream,
          bool touches_host, CUresult result) {
  if (!touches_host || result != CUDA_SUCCESS) return;
  // Started here, too: a copy may be the program's first use of the GPU, its free the second.
  Allocator* allocator = started_engine();
  if (allocator == nullptr || allocator->free_mode() != cupool::config::FreeMode::automatic) return;
  CUstream meant = stream;
  if (stream == nullptr) {
    meant = default_stream == DefaultStream::legacy ? CU_STREAM_LEGACY : CU_STREAM_PER_THREAD;
  }
  Context* context = allocator->registry().context_of(meant);
  if (context == nullptr) return;
  if (cupool::core::Ordering::any_capture() && real.cuStreamIsCapturing != nullptr) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (real.cuStreamIsCapturing(meant, &status) != CUDA_SUCCESS) {
      context->host_work().submitted_unseen();
      return;
    }
    if (status != CU_STREAM_CAPTURE_STATUS_NONE) return;  // in a graph, not on the GPU
  }
  context->host_work().submitted(meant);
}

bool is_host(CUmemorytype type) {
  return type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_UNIFIED;
}

template <typename Copy>
bool touches_host(const Copy* copy) {
  return copy != nullptr && (is_host(copy->srcMemoryType) || is_host(copy->dstMemoryType));
}

// A graph's own memory and code may run out of memory because of what lies idle with us (contract
// 4).
template <typename Call>
CUresult launch_graph(const Call& call) {
  Allocator* allocator = engine();
  return allocator == nullptr ? call() : allocator->rescue(call);
}

void forget_reachable(void* host, CUresult result) {
  if (result != CUDA_SUCCESS) return;
  if (Allocator* allocator = engine()) {
    allocator->host_reachable().remove(HostReachable::Kind::zero_copy,
                                       reinterpret_cast<std::uintptr_t>(host));
  }
}

}  // namespace

extern "C" {

CUresult cupool_hook_cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes,
                                          CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpyHtoDAsync_v2);
  const CUresult result = real.cuMemcpyHtoDAsync_v2(to, from, bytes, stream);
  note(real, stream, DefaultStream::legacy, true, result);
  return result;
}

CUresult cupool_hook_cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void* from, size_t bytes,
                                               CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpyHtoDAsync_v2_ptsz);
  const CUresult result = real.cuMemcpyHtoDAsync_v2_ptsz(to, from, bytes, stream);
  note(real, stream, DefaultStream::per_thread, true, result);
  return result;
}

CUresult cupool_hook_cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes,
                                          CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpyDtoHAsync_v2);
  const CUresult result = real.cuMemcpyDtoHAsync_v2(to, from, bytes, stream);
  note(real, stream, DefaultStream::legacy, true, result);
  return result;
}

CUresult cupool_hook_cuMemcpyDtoHAsync_v2_ptsz(void* to, CUdeviceptr from, size_t bytes,
                                               CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpyDtoHAsync_v2_ptsz);
  const CUresult result = real.cuMemcpyDtoHAsync_v2_ptsz(to, from, bytes, stream);
  note(real, stream, DefaultStream::per_thread, true, result);
  return result;
}

CUresult cupool_hook_cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                   CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpyAsync);
  const CUresult result = real.cuMemcpyAsync(to, from, bytes, stream);
  note(real, stream, DefaultStream::legacy, true, result);
  return result;
}

CUresult cupool_hook_cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                        CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpyAsync_ptsz);
  const CUresult result = real.cuMemcpyAsync_ptsz(to, from, bytes, stream);
  note(real, stream, DefaultStream::per_thread, true, result);
  return result;
}

CUresult cupool_hook_cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void* from, size_t bytes,
                                          CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpyHtoAAsync_v2);
  const CUresult result = real.cuMemcpyHtoAAsync_v2(to, offset, from, bytes, stream);
  note(real, stream, DefaultStream::legacy, true, result);
  return result;
}

CUresult cupool_hook_cuMemcpyHtoAAsync_v2_ptsz(CUarray to, size_t offset, const void* from,
                                               size_t bytes, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpyHtoAAsync_v2_ptsz);
  const CUresult result = real.cuMemcpyHtoAAsync_v2_ptsz(to, offset, from, bytes, stream);
  note(real, stream, DefaultStream::per_thread, true, result);
  return result;
}

CUresult cupool_hook_cuMemcpyAtoHAsync_v2(void* to, CUarray from, size_t offset, size_t bytes,
                                          CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpyAtoHAsync_v2);
  const CUresult result = real.cuMemcpyAtoHAsync_v2(to, from, offset, bytes, stream);
  note(real, stream, DefaultStream::legacy, true, result);
  return result;
}

CUresult cupool_hook_cuMemcpyAtoHAsync_v2_ptsz(void* to, CUarray from, size_t offset, size_t bytes,
                                               CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpyAtoHAsync_v2_ptsz);
  const CUresult result = real.cuMemcpyAtoHAsync_v2_ptsz(to, from, offset, bytes, stream);
  note(real, stream, DefaultStream::per_thread, true, result);
  return result;
}

CUresult cupool_hook_cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpy2DAsync_v2);
  const CUresult result = real.cuMemcpy2DAsync_v2(copy, stream);
  note(real, stream, DefaultStream::legacy, touches_host(copy), result);
  return result;
}

CUresult cupool_hook_cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D* copy, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpy2DAsync_v2_ptsz);
  const CUresult result = real.cuMemcpy2DAsync_v2_ptsz(copy, stream);
  note(real, stream, DefaultStream::per_thread, touches_host(copy), result);
  return result;
}

CUresult cupool_hook_cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpy3DAsync_v2);
  const CUresult result = real.cuMemcpy3DAsync_v2(copy, stream);
  note(real, stream, DefaultStream::legacy, touches_host(copy), result);
  return result;
}

CUresult cupool_hook_cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D* copy, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpy3DAsync_v2_ptsz);
  const CUresult result = real.cuMemcpy3DAsync_v2_ptsz(copy, stream);
  note(real, stream, DefaultStream::per_thread, touches_host(copy), result);
  return result;
}

CUresult cupool_hook_cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes,
                                        size_t count, void* attributes, size_t* attribute_indices,
                                        size_t attribute_count, size_t* failed, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpyBatchAsync);
  const CUresult result = real.cuMemcpyBatchAsync(
      to, from, bytes, count, attributes, attribute_indices, attribute_count, failed, stream);
  note(real, stream, DefaultStream::legacy, true, result);
  return result;
}

CUresult cupool_hook_cuMemcpyBatchAsync_ptsz(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes,
                                             size_t count, void* attributes,
                                             size_t* attribute_indices, size_t attribute_count,
                                             size_t* failed, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpyBatchAsync_ptsz);
  const CUresult result = real.cuMemcpyBatchAsync_ptsz(
      to, from, bytes, count, attributes, attribute_indices, attribute_count, failed, stream);
  note(real, stream, DefaultStream::per_thread, true, result);
  return result;
}

CUresult cupool_hook_cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes,
                                           size_t count, void* attributes,
                                           size_t* attribute_indices, size_t attribute_count,
                                           CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpyBatchAsync_v2);
  const CUresult result = real.cuMemcpyBatchAsync_v2(to, from, bytes, count, attributes,
                                                     attribute_indices, attribute_count, stream);
  note(real, stream, DefaultStream::legacy, true, result);
  return result;
}

CUresult cupool_hook_cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes,
                                                size_t count, void* attributes,
                                                size_t* attribute_indices, size_t attribute_count,
                                                CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpyBatchAsync_v2_ptsz);
  const CUresult result = real.cuMemcpyBatchAsync_v2_ptsz(
      to, from, bytes, count, attributes, attribute_indices, attribute_count, stream);
  note(real, stream, DefaultStream::per_thread, true, result);
  return result;
}

CUresult cupool_hook_cuMemcpy3DBatchAsync(size_t count, void* copies, size_t* failed,
                                          unsigned long long flags, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpy3DBatchAsync);
  const CUresult result = real.cuMemcpy3DBatchAsync(count, copies, failed, flags, stream);
  note(real, stream, DefaultStream::legacy, true, result);
  return result;
}

CUresult cupool_hook_cuMemcpy3DBatchAsync_ptsz(size_t count, void* copies, size_t* failed,
                                               unsigned long long flags, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpy3DBatchAsync_ptsz);
  const CUresult result = real.cuMemcpy3DBatchAsync_ptsz(count, copies, failed, flags, stream);
  note(real, stream, DefaultStream::per_thread, true, result);
  return result;
}

CUresult cupool_hook_cuMemcpy3DBatchAsync_v2(size_t count, void* copies, unsigned long long flags,
                                             CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpy3DBatchAsync_v2);
  const CUresult result = real.cuMemcpy3DBatchAsync_v2(count, copies, flags, stream);
  note(real, stream, DefaultStream::legacy, true, result);
  return result;
}

CUresult cupool_hook_cuMemcpy3DBatchAsync_v2_ptsz(size_t count, void* copies,
                                                  unsigned long long flags, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuMemcpy3DBatchAsync_v2_ptsz);
  const CUresult result = real.cuMemcpy3DBatchAsync_v2_ptsz(count, copies, flags, stream);
  note(real, stream, DefaultStream::per_thread, true, result);
  return result;
}

CUresult cupool_hook_cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  CUPOOL_REAL_OR_RETURN(cuLaunchHostFunc);
  const CUresult result = real.cuLaunchHostFunc(stream, function, data);
  note(real, stream, DefaultStream::legacy, true, result);
  return result;
}

CUresult cupool_hook_cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void* data) {
  CUPOOL_REAL_OR_RETURN(cuLaunchHostFunc_ptsz);
  const CUresult result = real.cuLaunchHostFunc_ptsz(stream, function, data);
  note(real, stream, DefaultStream::per_thread, true, result);
  return result;
}

CUresult cupool_hook_cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* data,
                                         unsigned int flags) {
  CUPOOL_REAL_OR_RETURN(cuStreamAddCallback);
  const CUresult result = real.cuStreamAddCallback(stream, callback, data, flags);
  note(real, stream, DefaultStream::legacy, true, result);
  return result;
}

CUresult cupool_hook_cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback,
                                              void* data, unsigned int flags) {
  CUPOOL_REAL_OR_RETURN(cuStreamAddCallback_ptsz);
  const CUresult result = real.cuStreamAddCallback_ptsz(stream, callback, data, flags);
  note(real, stream, DefaultStream::per_thread, true, result);
  return result;
}

CUresult cupool_hook_cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuGraphLaunch);
  const CUresult result = launch_graph([&] { return real.cuGraphLaunch(graph, stream); });
  note(real, stream, DefaultStream::legacy, true, result);
  return result;
}

CUresult cupool_hook_cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuGraphLaunch_ptsz);
  const CUresult result = launch_graph([&] { return real.cuGraphLaunch_ptsz(graph, stream); });
  note(real, stream, DefaultStream::per_thread, true, result);
  return result;
}

CUresult cupool_hook_cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* host,
                                                  unsigned int flags) {
  CUPOOL_REAL_OR_RETURN(cuMemHostGetDevicePointer_v2);
  const CUresult result = real.cuMemHostGetDevicePointer_v2(address, host, flags);
  if (result != CUDA_SUCCESS) return result;
  const void* caller = __builtin_return_address(0);
  if (cupool::entry::is_cuda_library(caller)) return result;
  if (Allocator* allocator = started_engine()) {
    CUPOOL_LOG(debug, "%s asked for the device pointer of host memory: frees wait for kernels",
               cupool::entry::object_of(caller));
    allocator->host_reachable().add(HostReachable::Kind::zero_copy,
                                    reinterpret_cast<std::uintptr_t>(host));
  }
  return result;
}

CUresult cupool_hook_cuMemFreeHost(void* host) {
  CUPOOL_REAL_OR_RETURN(cuMemFreeHost);
  const CUresult result = real.cuMemFreeHost(host);
  forget_reachable(host, result);
  return result;
}

CUresult cupool_hook_cuMemHostUnregister(void* host) {
  CUPOOL_REAL_OR_RETURN(cuMemHostUnregister);
  const CUresult result = real.cuMemHostUnregister(host);
  forget_reachable(host, result);
  return result;
}

}  // extern "C"
