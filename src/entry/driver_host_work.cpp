// SPDX-License-Identifier: Apache-2.0
// Driver hooks of work that touches host memory, untouched and recorded: a free has to wait for it
// as a legacy free does (contract 2). Graphs are included, since they may contain copies and
// callbacks.
#include <algorithm>
#include <optional>

#include "engine/reclaim/stream_use.h"
#include "entry/caller.h"
#include "entry/forward.h"
#include "entry/hooks.h"
#include "process/lifecycle.h"
#include "util/log.h"

using cupool::engine::Allocator;
using cupool::engine::Context;
using cupool::engine::HostReachable;
using cupool::engine::HostTargets;
using cupool::engine::HostWork;
using cupool::engine::LegacyStream;
using cupool::engine::StreamUse;
using cupool::process::engine;
using cupool::process::started_engine;

namespace {

enum class DefaultStream { legacy, per_thread };

CUstream meant_by(CUstream stream, DefaultStream default_stream) {
  if (stream != nullptr) return stream;
  return default_stream == DefaultStream::legacy ? CU_STREAM_LEGACY : CU_STREAM_PER_THREAD;
}

// `touches_host` is called only if its answer matters.
template <typename TouchesHost>
void note(const cupool::cuda::Driver& real, CUstream stream, DefaultStream default_stream,
          const TouchesHost& touches_host, CUresult result) {
  if (result != CUDA_SUCCESS) return;
  // Starts the engine too: a copy may be the program's first use of the GPU, and a free the second.
  Allocator* allocator = started_engine();
  if (allocator == nullptr || allocator->policy().mode() != cupool::config::FreeMode::automatic)
    return;
  if (!touches_host()) return;
  const CUstream meant = meant_by(stream, default_stream);
  Context* context = allocator->streams().context_of(meant);
  if (context == nullptr) return;
  if (cupool::engine::Serving::any_capture() && real.cuStreamIsCapturing != nullptr) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (real.cuStreamIsCapturing(meant, &status) != CUDA_SUCCESS) {
      context->host_work().submitted_unseen();
      return;
    }
    if (status != CU_STREAM_CAPTURE_STATUS_NONE) return;  // recorded in a graph only
  }
  context->host_work().submitted(meant);
}

// The program's own wait for a stream: frees need not wait for its copies again. A wait for the
// legacy stream may cover all retired blocks. Another stream is identified only by its handle: a
// stream of a context other than the current one is not found.
template <typename Call>
CUresult synchronize(CUstream stream, DefaultStream default_stream, const Call& call) {
  Allocator* allocator = engine();
  Context* context = allocator == nullptr ? nullptr : allocator->registry().current();
  if (context == nullptr) return call();
  const CUstream meant = meant_by(stream, default_stream);
  if (meant == CU_STREAM_LEGACY && LegacyStream::covers_context()) {
    return allocator->synchronization().of_legacy_stream(*context, call);
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

bool is_host_memory(const cupool::cuda::Driver& real, CUdeviceptr address) {
  return HostTargets::include(real, address);
}

bool is_host(const cupool::cuda::Driver& real, CUmemorytype type, CUdeviceptr device) {
  return is_host(type) || (type == CU_MEMORYTYPE_DEVICE && is_host_memory(real, device));
}

template <typename Copy>
bool touches_host(const cupool::cuda::Driver& real, const Copy* copy) {
  return copy != nullptr && (is_host(real, copy->srcMemoryType, copy->srcDevice) ||
                             is_host(real, copy->dstMemoryType, copy->dstDevice));
}

bool touches_host(const cupool::cuda::Driver& real, unsigned count,
                  const CUstreamBatchMemOpParams* operations) {
  return std::any_of(operations, operations + count, [&](const auto& one) {
    switch (one.operation) {
      case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      case CU_STREAM_MEM_OP_BARRIER:
        return false;
      default:  // all others have the address at the same offset
        return is_host_memory(real, one.writeValue.address);
    }
  });
}

// A graph's own memory and code may run out of memory because of cupool's idle memory (contract 4).
template <typename Call>
CUresult launch_graph(const Call& call) {
  Allocator* allocator = engine();
  return allocator == nullptr ? call() : allocator->out_of_memory().rescue(call);
}

// The begin of the page-locked memory that contains `device`. Programs request device pointers
// inside of it, and free it by its begin.
std::uintptr_t start_of(const cupool::cuda::Driver& real, CUdeviceptr device) {
  CUdeviceptr start = 0;
  const CUresult result =
      real.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, device);
  return result == CUDA_SUCCESS ? start : device;
}

// `call` frees or unregisters page-locked memory. No kernel reaches it afterwards.
template <typename Call>
CUresult end_host_memory(const cupool::cuda::Driver& real, void* host, const Call& call) {
  Allocator* const allocator = engine();
  constexpr HostReachable::Kind kKind = HostReachable::Kind::zero_copy;
  CUdeviceptr device = 0;
  const bool reachable = allocator != nullptr && allocator->policy().host_reachable().any(kKind) &&
                         real.cuMemHostGetDevicePointer_v2(&device, host, 0) == CUDA_SUCCESS;
  const std::uintptr_t start = reachable ? start_of(real, device) : 0;
  std::optional<HostReachable::Memory> taken;
  if (reachable) taken = allocator->policy().host_reachable().take(kKind, start);
  const CUresult result = call();
  if (taken && result != CUDA_SUCCESS)
    allocator->policy().host_reachable().add(kKind, start, *taken);
  return result;
}

}  // namespace

extern "C" {

// A function and its variant for per-thread default streams: the real call, then the record.
// `touches` tells whether host memory is involved; the arguments of the real function follow the
// parameters.
#define CUPOOL_NOTED_AS(symbol, default_stream, touches, parameters, ...)              \
  CUresult cupool_hook_##symbol parameters {                                           \
    CUPOOL_REAL_OR_RETURN(symbol);                                                     \
    const StreamUse in_use(stream);                                                    \
    const CUresult result = real.symbol(__VA_ARGS__);                                  \
    note(                                                                              \
        real, stream, DefaultStream::default_stream, [&] { return touches; }, result); \
    return result;                                                                     \
  }
#define CUPOOL_NOTED(name, touches, parameters, ...)              \
  CUPOOL_NOTED_AS(name, legacy, touches, parameters, __VA_ARGS__) \
  CUPOOL_NOTED_AS(name##_ptsz, per_thread, touches, parameters, __VA_ARGS__)

// The same for frequent functions with device pointers: not recorded while no such pointer can
// refer to host memory. Their forms without a stream wait for host memory themselves (measured).
#define CUPOOL_AIMED_AS(symbol, default_stream, touches, parameters, ...)              \
  CUresult cupool_hook_##symbol parameters {                                           \
    CUPOOL_REAL_OR_RETURN(symbol);                                                     \
    if (!HostTargets::any()) return real.symbol(__VA_ARGS__);                          \
    const StreamUse in_use(stream);                                                    \
    const CUresult result = real.symbol(__VA_ARGS__);                                  \
    note(                                                                              \
        real, stream, DefaultStream::default_stream, [&] { return touches; }, result); \
    return result;                                                                     \
  }
#define CUPOOL_AIMED(name, touches, parameters, ...)              \
  CUPOOL_AIMED_AS(name, legacy, touches, parameters, __VA_ARGS__) \
  CUPOOL_AIMED_AS(name##_ptsz, per_thread, touches, parameters, __VA_ARGS__)

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
CUPOOL_NOTED(cuMemcpy2DAsync_v2, touches_host(real, copy),
             (const CUDA_MEMCPY2D* copy, CUstream stream), copy, stream)
CUPOOL_NOTED(cuMemcpy3DAsync_v2, touches_host(real, copy),
             (const CUDA_MEMCPY3D* copy, CUstream stream), copy, stream)
CUPOOL_NOTED(cuMemcpy3DPeerAsync, touches_host(real, copy),
             (const CUDA_MEMCPY3D_PEER* copy, CUstream stream), copy, stream)
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

CUPOOL_AIMED(cuMemsetD8Async, is_host_memory(real, to),
             (CUdeviceptr to, unsigned char value, size_t count, CUstream stream), to, value, count,
             stream)
CUPOOL_AIMED(cuMemsetD16Async, is_host_memory(real, to),
             (CUdeviceptr to, unsigned short value, size_t count, CUstream stream), to, value,
             count, stream)
CUPOOL_AIMED(cuMemsetD32Async, is_host_memory(real, to),
             (CUdeviceptr to, unsigned int value, size_t count, CUstream stream), to, value, count,
             stream)
CUPOOL_AIMED(cuMemsetD2D8Async, is_host_memory(real, to),
             (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
              CUstream stream),
             to, pitch, value, width, height, stream)
CUPOOL_AIMED(cuMemsetD2D16Async, is_host_memory(real, to),
             (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
              CUstream stream),
             to, pitch, value, width, height, stream)
CUPOOL_AIMED(cuMemsetD2D32Async, is_host_memory(real, to),
             (CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height,
              CUstream stream),
             to, pitch, value, width, height, stream)
CUPOOL_AIMED(cuMemcpyDtoDAsync_v2, is_host_memory(real, to) || is_host_memory(real, from),
             (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to, from, bytes,
             stream)
CUPOOL_AIMED(cuMemcpyPeerAsync, is_host_memory(real, to) || is_host_memory(real, from),
             (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
              size_t bytes, CUstream stream),
             to, to_context, from, from_context, bytes, stream)
CUPOOL_AIMED(cuStreamWaitValue32, is_host_memory(real, at),
             (CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned int flags), stream, at,
             value, flags)
CUPOOL_AIMED(cuStreamWaitValue32_v2, is_host_memory(real, at),
             (CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned int flags), stream, at,
             value, flags)
CUPOOL_AIMED(cuStreamWriteValue32, is_host_memory(real, at),
             (CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned int flags), stream, at,
             value, flags)
CUPOOL_AIMED(cuStreamWriteValue32_v2, is_host_memory(real, at),
             (CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned int flags), stream, at,
             value, flags)
CUPOOL_AIMED(cuStreamWaitValue64, is_host_memory(real, at),
             (CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned int flags), stream, at,
             value, flags)
CUPOOL_AIMED(cuStreamWaitValue64_v2, is_host_memory(real, at),
             (CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned int flags), stream, at,
             value, flags)
CUPOOL_AIMED(cuStreamWriteValue64, is_host_memory(real, at),
             (CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned int flags), stream, at,
             value, flags)
CUPOOL_AIMED(cuStreamWriteValue64_v2, is_host_memory(real, at),
             (CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned int flags), stream, at,
             value, flags)
CUPOOL_AIMED(cuStreamBatchMemOp, touches_host(real, count, operations),
             (CUstream stream, unsigned int count, CUstreamBatchMemOpParams* operations,
              unsigned int flags),
             stream, count, operations, flags)
CUPOOL_AIMED(cuStreamBatchMemOp_v2, touches_host(real, count, operations),
             (CUstream stream, unsigned int count, CUstreamBatchMemOpParams* operations,
              unsigned int flags),
             stream, count, operations, flags)

CUresult cupool_hook_cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuGraphLaunch);
  const StreamUse in_use(stream);
  const CUresult result = launch_graph([&] { return real.cuGraphLaunch(graph, stream); });
  note(
      real, stream, DefaultStream::legacy, [] { return true; }, result);
  return result;
}

CUresult cupool_hook_cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuGraphLaunch_ptsz);
  const StreamUse in_use(stream);
  const CUresult result = launch_graph([&] { return real.cuGraphLaunch_ptsz(graph, stream); });
  note(
      real, stream, DefaultStream::per_thread, [] { return true; }, result);
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
  const void* const caller = __builtin_return_address(0);
  constexpr HostReachable::Kind kKind = HostReachable::Kind::zero_copy;
  const std::uintptr_t start = start_of(real, *address);
  Allocator* allocator = engine();
  if (allocator != nullptr && allocator->policy().host_reachable().holds(kKind, start))
    return result;
  if (cupool::entry::is_cuda_library(caller)) return result;
  if ((allocator = started_engine()) != nullptr) {
    CUPOOL_LOG(debug, "%s requested the device pointer of host memory: frees wait for kernels",
               cupool::entry::object_of(caller));
    allocator->policy().host_reachable().add(kKind, start, {0, allocator->registry().current()});
  }
  return result;
}

CUresult cupool_hook_cuMemFreeHost(void* host) {
  CUPOOL_REAL_OR_RETURN(cuMemFreeHost);
  Allocator* const allocator = engine();
  if (allocator != nullptr && allocator->queries().is_internal(host))
    return CUDA_ERROR_INVALID_VALUE;
  return end_host_memory(real, host, [&] { return real.cuMemFreeHost(host); });
}

CUresult cupool_hook_cuMemHostUnregister(void* host) {
  CUPOOL_REAL_OR_RETURN(cuMemHostUnregister);
  return end_host_memory(real, host, [&] { return real.cuMemHostUnregister(host); });
}

}  // extern "C"
