// Driver hooks of work that touches host memory, untouched and noted: a free has to wait for it as
// a legacy free does (contract 2). Graphs are among them, since one may hold copies and callbacks.
#include "core/stream_use.h"
#include "entry/caller.h"
#include "entry/forward.h"
#include "entry/hooks.h"
#include "process/lifecycle.h"
#include "util/log.h"

using cupool::core::Allocator;
using cupool::core::Context;
using cupool::core::HostReachable;
using cupool::core::HostWork;
using cupool::core::LegacyStream;
using cupool::core::StreamUse;
using cupool::process::engine;
using cupool::process::started_engine;

namespace {

enum class DefaultStream { legacy, per_thread };

CUstream meant_by(CUstream stream, DefaultStream default_stream) {
  if (stream != nullptr) return stream;
  return default_stream == DefaultStream::legacy ? CU_STREAM_LEGACY : CU_STREAM_PER_THREAD;
}

void note(const cupool::cuda::Driver& real, CUstream stream, DefaultStream default_stream,
          bool touches_host, CUresult result) {
  if (!touches_host || result != CUDA_SUCCESS) return;
  // Started here, too: a copy may be the program's first use of the GPU, its free the second.
  Allocator* allocator = started_engine();
  if (allocator == nullptr || allocator->free_mode() != cupool::config::FreeMode::automatic) return;
  const CUstream meant = meant_by(stream, default_stream);
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

// The program's own wait for a stream: no free has to look whether its copies are done; and the
// legacy stream's may be one for all that was freed. Another stream is only a name here: one of
// another context than the current one is not known by it.
template <typename Call>
CUresult synchronize(CUstream stream, DefaultStream default_stream, const Call& call) {
  Allocator* allocator = engine();
  Context* context = allocator == nullptr ? nullptr : allocator->registry().current();
  if (context == nullptr) return call();
  const CUstream meant = meant_by(stream, default_stream);
  if (meant == CU_STREAM_LEGACY && LegacyStream::covers_context()) {
    return allocator->synchronize_legacy_stream(*context, call);
  }
  if (!context->host_work().maybe_pending()) return call();
  const HostWork::Mark before = context->host_work().begin_wait();
  const CUresult result = call();
  if (result == CUDA_SUCCESS) context->host_work().end_stream_wait(meant, before);
  return result;
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

// A function and its twin for per-thread default streams: the real call, then the note. `touches`
// says whether host memory takes part; what follows the parameters is what the real function is
// given.
#define CUPOOL_NOTED_AS(symbol, default_stream, touches, parameters, ...) \
  CUresult cupool_hook_##symbol parameters {                              \
    CUPOOL_REAL_OR_RETURN(symbol);                                        \
    const StreamUse in_use(stream);                                       \
    const CUresult result = real.symbol(__VA_ARGS__);                     \
    note(real, stream, DefaultStream::default_stream, touches, result);   \
    return result;                                                        \
  }
#define CUPOOL_NOTED(name, touches, parameters, ...)              \
  CUPOOL_NOTED_AS(name, legacy, touches, parameters, __VA_ARGS__) \
  CUPOOL_NOTED_AS(name##_ptsz, per_thread, touches, parameters, __VA_ARGS__)

CUPOOL_NOTED(cuMemcpyHtoDAsync_v2, true,
             (CUdeviceptr to, const void* from, size_t bytes, CUstream stream), to, from, bytes,
             stream)
CUPOOL_NOTED(cuMemcpyDtoHAsync_v2, true,
             (void* to, CUdeviceptr from, size_t bytes, CUstream stream), to, from, bytes, stream)
CUPOOL_NOTED(cuMemcpyAsync, true, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
             to, from, bytes, stream)
CUPOOL_NOTED(cuMemcpyHtoAAsync_v2, true,
             (CUarray to, size_t offset, const void* from, size_t bytes, CUstream stream), to,
             offset, from, bytes, stream)
CUPOOL_NOTED(cuMemcpyAtoHAsync_v2, true,
             (void* to, CUarray from, size_t offset, size_t bytes, CUstream stream), to, from,
             offset, bytes, stream)
CUPOOL_NOTED(cuMemcpy2DAsync_v2, touches_host(copy), (const CUDA_MEMCPY2D* copy, CUstream stream),
             copy, stream)
CUPOOL_NOTED(cuMemcpy3DAsync_v2, touches_host(copy), (const CUDA_MEMCPY3D* copy, CUstream stream),
             copy, stream)
CUPOOL_NOTED(cuMemcpyBatchAsync, true,
             (CUdeviceptr * to, CUdeviceptr* from, size_t* bytes, size_t count, void* attributes,
              size_t* attribute_indices, size_t attribute_count, size_t* failed, CUstream stream),
             to, from, bytes, count, attributes, attribute_indices, attribute_count, failed, stream)
CUPOOL_NOTED(cuMemcpyBatchAsync_v2, true,
             (CUdeviceptr * to, CUdeviceptr* from, size_t* bytes, size_t count, void* attributes,
              size_t* attribute_indices, size_t attribute_count, CUstream stream),
             to, from, bytes, count, attributes, attribute_indices, attribute_count, stream)
CUPOOL_NOTED(cuMemcpy3DBatchAsync, true,
             (size_t count, void* copies, size_t* failed, unsigned long long flags,
              CUstream stream),
             count, copies, failed, flags, stream)
CUPOOL_NOTED(cuMemcpy3DBatchAsync_v2, true,
             (size_t count, void* copies, unsigned long long flags, CUstream stream), count, copies,
             flags, stream)
CUPOOL_NOTED(cuMemcpyWithAttributesAsync, true,
             (CUdeviceptr to, CUdeviceptr from, size_t bytes, void* attributes, CUstream stream),
             to, from, bytes, attributes, stream)
CUPOOL_NOTED(cuMemcpy3DWithAttributesAsync, true,
             (void* copy, unsigned long long flags, CUstream stream), copy, flags, stream)
CUPOOL_NOTED(cuLaunchHostFunc, true, (CUstream stream, CUhostFn function, void* data), stream,
             function, data)
CUPOOL_NOTED(cuLaunchHostFunc_v2, true,
             (CUstream stream, CUhostFn function, void* data, unsigned int sync_mode), stream,
             function, data, sync_mode)
CUPOOL_NOTED(cuStreamAddCallback, true,
             (CUstream stream, CUstreamCallback callback, void* data, unsigned int flags), stream,
             callback, data, flags)

CUresult cupool_hook_cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuGraphLaunch);
  const StreamUse in_use(stream);
  const CUresult result = launch_graph([&] { return real.cuGraphLaunch(graph, stream); });
  note(real, stream, DefaultStream::legacy, true, result);
  return result;
}

CUresult cupool_hook_cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuGraphLaunch_ptsz);
  const StreamUse in_use(stream);
  const CUresult result = launch_graph([&] { return real.cuGraphLaunch_ptsz(graph, stream); });
  note(real, stream, DefaultStream::per_thread, true, result);
  return result;
}

CUresult cupool_hook_cuStreamSynchronize(CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuStreamSynchronize);
  return synchronize(stream, DefaultStream::legacy,
                     [&] { return real.cuStreamSynchronize(stream); });
}

CUresult cupool_hook_cuStreamSynchronize_ptsz(CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuStreamSynchronize_ptsz);
  return synchronize(stream, DefaultStream::per_thread,
                     [&] { return real.cuStreamSynchronize_ptsz(stream); });
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
  Allocator* const allocator = engine();
  const bool internal = allocator != nullptr && allocator->is_internal(host);
  const CUresult result = internal ? CUDA_ERROR_INVALID_VALUE : real.cuMemFreeHost(host);
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
