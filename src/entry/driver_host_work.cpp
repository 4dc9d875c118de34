// SPDX-License-Identifier: Apache-2.0
// Driver hooks of work that touches host memory, untouched and recorded: a free has to wait for it
// as a legacy free does (contract 2). Graphs are included, since they may contain copies and
// callbacks.
#include "engine/context/submission.h"
#include "engine/reclaim/host_targets.h"
#include "entry/caller.h"
#include "entry/default_stream.h"
#include "entry/forward.h"
#include "entry/hooks.h"
#include "entry/noted.h"
#include "entry/peers.h"
#include "entry/watched.h"
#include "process/lifecycle.h"
#include "util/log.h"

using cupool::engine::Allocator;
using cupool::engine::HostTargets;
using cupool::engine::PinnedMemory;
using cupool::engine::Submission;
using cupool::engine::submits_unknown;
using cupool::entry::are_apart;
using cupool::entry::CallToNote;
using cupool::entry::legacy;
using cupool::entry::may_be_seen;
using cupool::entry::note;
using cupool::entry::per_thread;
using cupool::process::engine;
using cupool::process::started_engine;

namespace {

// A graph's own memory and code may run out of memory because of cupool's idle memory (contract 4).
// No free waits for the time between attempts: what was refused has submitted nothing.
template <typename Call>
CUresult launch_graph(CUstream stream, const Call& call) {
  const auto launch = [&] {
    const CallToNote under_way(stream);
    const CUresult result = call();
    note(
        stream, [] { return true; }, result);
    return result;
  };
  Allocator* const allocator = engine();
  return allocator == nullptr ? launch()
                              : cupool::engine::rescue(allocator->out_of_memory(), launch);
}

bool is_pinned(CUdeviceptr address) {
  return PinnedMemory::may_hold(address);
}
bool is_pinned(const void* host) {
  return is_pinned(reinterpret_cast<CUdeviceptr>(host));
}

// Whether `host` is page-locked memory that the program has freed.
bool is_nobodys(const void* host) {
  Allocator* const allocator = engine();
  return allocator != nullptr &&
         allocator->host().blocks().find_around(reinterpret_cast<CUdeviceptr>(host)).nobodys;
}

template <typename Call>
CUresult synchronize(CUstream stream, const Call& call) {
  Allocator* const allocator = engine();
  return allocator == nullptr ? call() : allocator->synchronization().of_stream(stream, call);
}

// Runs the driver's call that takes page-locked memory back. What it refuses stays page-locked:
// kernels may still be given its address.
template <typename Call>
CUresult forgotten(void* host, const Call& give_back) {
  const std::uint64_t number = PinnedMemory::number_of(host);
  const CUresult result = give_back();
  PinnedMemory::was_asked_for(host, number, result == CUDA_SUCCESS);
  return result;
}

CUresult free_host(Allocator* allocator, void* host) {
  if (allocator != nullptr) {
    if (const auto freed = allocator->host().try_free(host)) return *freed;
  }
  CUPOOL_REAL_OR_RETURN(cuMemFreeHost);
  const auto call = [&] { return real.cuMemFreeHost(host); };
  if (allocator == nullptr) return forgotten(host, call);
  return allocator->host().free_by_driver(host, [&] {
    return forgotten(host, [&] { return allocator->pass_through().free_host(host, call); });
  });
}

}  // namespace

extern "C" {

// A function and its variant for per-thread default streams: the real call, then the record.
// `touches` tells whether host memory is involved, and `possible` is false if it cannot be. `seen`
// is false if no other thread can see the work before the call returns; `touches` may be its value,
// is_seen. `apart` is true for a copy between two contexts. The arguments of the real function
// follow the parameters.
#define CUPOOL_NOTED_IF(possible, seen, apart, name, touches, parameters, ...)           \
  CUPOOL_NOTED_AS(possible, seen, apart, name, legacy, touches, parameters, __VA_ARGS__) \
  CUPOOL_NOTED_AS(possible, seen, apart, name##_ptsz, per_thread, touches, parameters, __VA_ARGS__)
#define CUPOOL_NOTED_AS(possible, seen, apart, symbol, named, touches, parameters, ...) \
  CUresult cupool_hook_##symbol parameters {                                            \
    CUPOOL_REAL_OR_RETURN(symbol);                                                      \
    if (apart) submits_unknown(real, #symbol);                                          \
    const Submission submission(real, named(stream), #symbol);                          \
    if (!(possible)) return real.symbol(__VA_ARGS__);                                   \
    const bool is_seen = may_be_seen([&] { return seen; });                             \
    const CallToNote under_way(stream, is_seen);                                        \
    const CUresult result = real.symbol(__VA_ARGS__);                                   \
    note(                                                                               \
        named(stream), [&] { return touches; }, result);                                \
    return result;                                                                      \
  }
// Pageable memory is copied by the calling thread, for which the driver's free does not wait
// either: its copies are not seen before.
#define CUPOOL_COPIED(name, pinned, parameters, ...) \
  CUPOOL_NOTED_IF(true, pinned, false, name, true, parameters, __VA_ARGS__)
// Of a part of memory that may be page-locked in part.
#define CUPOOL_COPIED_BOX(name, parameters, ...)                                           \
  CUPOOL_NOTED_IF(true, HostTargets::any(), false, name, HostTargets::in_copy(real, copy), \
                  parameters, __VA_ARGS__)
// Several copies, or one in a form that is not read.
#define CUPOOL_COPIED_SOMEHOW(name, parameters, ...) \
  CUPOOL_NOTED_IF(true, HostTargets::any(), false, name, true, parameters, __VA_ARGS__)
#define CUPOOL_CALLS_BACK(name, parameters, ...) \
  CUPOOL_NOTED_IF(true, true, false, name, true, parameters, __VA_ARGS__)

// Frequent functions with device pointers: not recorded while no such pointer can refer to host
// memory. Their forms without a stream wait for host memory themselves (measured).
#define CUPOOL_AIMED(name, touches, parameters, ...) \
  CUPOOL_NOTED_IF(HostTargets::any(), touches, false, name, is_seen, parameters, __VA_ARGS__)
#define CUPOOL_OPERATIONS(name, parameters, ...)         \
  CUPOOL_NOTED_IF(HostTargets::any(), true, false, name, \
                  HostTargets::in_operations(real, count, operations), parameters, __VA_ARGS__)
// Between contexts.
#define CUPOOL_PEERS(name, apart, possible, seen, touches, parameters, ...) \
  CUPOOL_NOTED_IF(possible, seen, apart, name, touches, parameters, __VA_ARGS__)
#define CUPOOL_FILL(name, type)                                                               \
  CUPOOL_AIMED(name, HostTargets::include(real, to),                                          \
               (CUdeviceptr to, type value, size_t count, CUstream stream), to, value, count, \
               stream)
#define CUPOOL_FILL_2D(name, type)                                                              \
  CUPOOL_AIMED(                                                                                 \
      name, HostTargets::include(real, to),                                                     \
      (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, CUstream stream), \
      to, pitch, value, width, height, stream)
#define CUPOOL_WORD(name, type)                                                               \
  CUPOOL_AIMED(name, HostTargets::include(real, at),                                          \
               (CUstream stream, CUdeviceptr at, type value, unsigned int flags), stream, at, \
               value, flags)

CUPOOL_COPIED(cuMemcpyHtoDAsync_v2, is_pinned(from),
              (CUdeviceptr to, const void* from, size_t bytes, CUstream stream), to, from, bytes,
              stream)
CUPOOL_COPIED(cuMemcpyDtoHAsync_v2, is_pinned(to),
              (void* to, CUdeviceptr from, size_t bytes, CUstream stream), to, from, bytes, stream)
CUPOOL_COPIED(cuMemcpyAsync, is_pinned(to) || is_pinned(from),
              (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to, from, bytes,
              stream)
CUPOOL_COPIED(cuMemcpyHtoAAsync_v2, is_pinned(from),
              (CUarray to, size_t offset, const void* from, size_t bytes, CUstream stream), to,
              offset, from, bytes, stream)
CUPOOL_COPIED(cuMemcpyAtoHAsync_v2, is_pinned(to),
              (void* to, CUarray from, size_t offset, size_t bytes, CUstream stream), to, from,
              offset, bytes, stream)
CUPOOL_COPIED_BOX(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D* copy, CUstream stream), copy, stream)
CUPOOL_COPIED_BOX(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D* copy, CUstream stream), copy, stream)
CUPOOL_PEERS(cuMemcpy3DPeerAsync, are_apart(copy), true, HostTargets::any(),
             HostTargets::in_copy(real, copy), (const CUDA_MEMCPY3D_PEER* copy, CUstream stream),
             copy, stream)
CUPOOL_COPIED_SOMEHOW(cuMemcpyBatchAsync,
                      (CUdeviceptr * to, CUdeviceptr* from, size_t* bytes, size_t count,
                       void* attributes, size_t* attribute_indices, size_t attribute_count,
                       size_t* failed, CUstream stream),
                      to, from, bytes, count, attributes, attribute_indices, attribute_count,
                      failed, stream)
CUPOOL_COPIED_SOMEHOW(cuMemcpyBatchAsync_v2,
                      (CUdeviceptr * to, CUdeviceptr* from, size_t* bytes, size_t count,
                       void* attributes, size_t* attribute_indices, size_t attribute_count,
                       CUstream stream),
                      to, from, bytes, count, attributes, attribute_indices, attribute_count,
                      stream)
CUPOOL_COPIED_SOMEHOW(cuMemcpy3DBatchAsync,
                      (size_t count, void* copies, size_t* failed, unsigned long long flags,
                       CUstream stream),
                      count, copies, failed, flags, stream)
CUPOOL_COPIED_SOMEHOW(cuMemcpy3DBatchAsync_v2,
                      (size_t count, void* copies, unsigned long long flags, CUstream stream),
                      count, copies, flags, stream)
CUPOOL_COPIED_SOMEHOW(cuMemcpyWithAttributesAsync,
                      (CUdeviceptr to, CUdeviceptr from, size_t bytes, void* attributes,
                       CUstream stream),
                      to, from, bytes, attributes, stream)
CUPOOL_COPIED_SOMEHOW(cuMemcpy3DWithAttributesAsync,
                      (void* copy, unsigned long long flags, CUstream stream), copy, flags, stream)
CUPOOL_CALLS_BACK(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void* data), stream,
                  function, data)
CUPOOL_CALLS_BACK(cuLaunchHostFunc_v2,
                  (CUstream stream, CUhostFn function, void* data, unsigned int sync_mode), stream,
                  function, data, sync_mode)
CUPOOL_CALLS_BACK(cuStreamAddCallback,
                  (CUstream stream, CUstreamCallback callback, void* data, unsigned int flags),
                  stream, callback, data, flags)

CUPOOL_FILL(cuMemsetD8Async, unsigned char)
CUPOOL_FILL(cuMemsetD16Async, unsigned short)
CUPOOL_FILL(cuMemsetD32Async, unsigned int)
CUPOOL_FILL_2D(cuMemsetD2D8Async, unsigned char)
CUPOOL_FILL_2D(cuMemsetD2D16Async, unsigned short)
CUPOOL_FILL_2D(cuMemsetD2D32Async, unsigned int)
CUPOOL_AIMED(cuMemcpyDtoDAsync_v2,
             HostTargets::include(real, to) || HostTargets::include(real, from),
             (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to, from, bytes,
             stream)
CUPOOL_PEERS(cuMemcpyPeerAsync, are_apart(from_context, to_context), HostTargets::any(),
             HostTargets::include(real, to) || HostTargets::include(real, from), is_seen,
             (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
              size_t bytes, CUstream stream),
             to, to_context, from, from_context, bytes, stream)
CUPOOL_AIMED(cuMemBatchDecompressAsync, true,
             (void* parameters, size_t count, unsigned int flags, size_t* failed, CUstream stream),
             parameters, count, flags, failed, stream)
CUPOOL_WORD(cuStreamWaitValue32, cuuint32_t)
CUPOOL_WORD(cuStreamWaitValue32_v2, cuuint32_t)
CUPOOL_WORD(cuStreamWriteValue32, cuuint32_t)
CUPOOL_WORD(cuStreamWriteValue32_v2, cuuint32_t)
CUPOOL_WORD(cuStreamWaitValue64, cuuint64_t)
CUPOOL_WORD(cuStreamWaitValue64_v2, cuuint64_t)
CUPOOL_WORD(cuStreamWriteValue64, cuuint64_t)
CUPOOL_WORD(cuStreamWriteValue64_v2, cuuint64_t)
CUPOOL_OPERATIONS(cuStreamBatchMemOp,
                  (CUstream stream, unsigned int count, CUstreamBatchMemOpParams* operations,
                   unsigned int flags),
                  stream, count, operations, flags)
CUPOOL_OPERATIONS(cuStreamBatchMemOp_v2,
                  (CUstream stream, unsigned int count, CUstreamBatchMemOpParams* operations,
                   unsigned int flags),
                  stream, count, operations, flags)

CUresult cupool_hook_cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuGraphLaunch);
  const Submission submission(real, legacy(stream), "cuGraphLaunch");
  return launch_graph(legacy(stream), [&] { return real.cuGraphLaunch(graph, stream); });
}

CUresult cupool_hook_cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuGraphLaunch_ptsz);
  const Submission submission(real, per_thread(stream), "cuGraphLaunch_ptsz");
  return launch_graph(per_thread(stream), [&] { return real.cuGraphLaunch_ptsz(graph, stream); });
}

CUresult cupool_hook_cuStreamSynchronize(CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuStreamSynchronize);
  return synchronize(legacy(stream), [&] { return real.cuStreamSynchronize(stream); });
}

CUresult cupool_hook_cuStreamSynchronize_ptsz(CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuStreamSynchronize_ptsz);
  return synchronize(per_thread(stream), [&] { return real.cuStreamSynchronize_ptsz(stream); });
}

CUresult cupool_hook_cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* host,
                                                  unsigned int flags) {
  CUPOOL_REAL_OR_RETURN(cuMemHostGetDevicePointer_v2);
  if (is_nobodys(host)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = real.cuMemHostGetDevicePointer_v2(address, host, flags);
  if (result != CUDA_SUCCESS) return result;
  const void* const caller = __builtin_return_address(0);
  Allocator* allocator = engine();
  if (allocator != nullptr && allocator->pass_through().is_zero_copy(*address)) return result;
  if (cupool::entry::is_cuda_library(caller)) return result;
  if ((allocator = started_engine()) != nullptr) {
    CUPOOL_LOG(debug, "%s requested the device pointer of host memory: frees wait for kernels",
               cupool::entry::object_of(caller));
    allocator->pass_through().zero_copy_requested(*address);
  }
  return result;
}

CUresult cupool_hook_cuMemFreeHost(void* host) {
  Allocator* const allocator = engine();
  if (allocator == nullptr || !cupool::trace::watching_other_kinds()) {
    return free_host(allocator, host);
  }
  return cupool::entry::watched_other_free(reinterpret_cast<std::uint64_t>(host),
                                           [&] { return free_host(allocator, host); });
}

CUresult cupool_hook_cuMemHostGetFlags(unsigned int* flags, void* host) {
  CUPOOL_REAL_OR_RETURN(cuMemHostGetFlags);
  if (is_nobodys(host)) return CUDA_ERROR_INVALID_VALUE;
  return real.cuMemHostGetFlags(flags, host);
}

CUresult cupool_hook_cuMemHostUnregister(void* host) {
  CUPOOL_REAL_OR_RETURN(cuMemHostUnregister);
  const auto call = [&] { return real.cuMemHostUnregister(host); };
  return forgotten(host, [&] {
    Allocator* const allocator = engine();
    return allocator == nullptr ? call() : allocator->pass_through().unregister_host(host, call);
  });
}

}  // extern "C"
