// Driver hooks of contexts and streams: synchronisation, the end of contexts, captures.
#include "entry/forward.h"
#include "entry/hooks.h"
#include "process/lifecycle.h"

using cupool::core::Allocator;
using cupool::core::Context;
using cupool::process::engine;
using cupool::process::started_engine;

namespace {

// After the driver has ended contexts of a device: those that are really gone.
void primary_context_ended(Allocator& allocator, const cupool::cuda::Driver& real, CUdevice device,
                           CUcontext primary) {
  unsigned int flags = 0;
  int active = 0;
  if (primary == nullptr) return;
  if (real.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active != 0) {
    return;
  }
  if (Context* context = allocator.registry().find(primary)) allocator.context_gone(*context);
}

// The handle of a device's primary context if it is active: retained for a moment to ask.
CUcontext active_primary(const cupool::cuda::Driver& real, CUdevice device) {
  unsigned int flags = 0;
  int active = 0;
  CUcontext context = nullptr;
  if (real.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || active == 0) {
    return nullptr;
  }
  if (real.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS) return nullptr;
  real.cuDevicePrimaryCtxRelease_v2 != nullptr ? real.cuDevicePrimaryCtxRelease_v2(device)
                                               : real.cuDevicePrimaryCtxRelease(device);
  return context;
}

template <typename Call>
CUresult end_primary(const cupool::cuda::Driver& real, CUdevice device, const Call& call) {
  Allocator* allocator = engine();
  if (allocator == nullptr) return call();
  const CUcontext primary = active_primary(real, device);
  const CUresult result = call();
  if (result == CUDA_SUCCESS) primary_context_ended(*allocator, real, device, primary);
  return result;
}

template <typename Call>
CUresult destroy_context(CUcontext handle, const Call& call) {
  Allocator* allocator = engine();
  Context* context = allocator == nullptr ? nullptr : allocator->registry().find(handle);
  const CUresult result = call();
  if (result == CUDA_SUCCESS && context != nullptr) allocator->context_gone(*context);
  return result;
}

// What handle 0 means to the functions of per-thread default streams.
CUstream per_thread(CUstream stream) {
  return stream == nullptr ? CU_STREAM_PER_THREAD : stream;
}

// I3: no fence is recorded while a capture begins, and none until it has ended.
template <typename Call>
CUresult begin_capture(CUstream stream, const Call& call) {
  Allocator* allocator = started_engine();
  if (allocator == nullptr) return call();
  Context* context = allocator->registry().context_of(stream);
  return context == nullptr ? call() : context->ordering().begin_capture(stream, call);
}

template <typename Call>
CUresult end_capture(CUresult (*is_capturing)(CUstream, CUstreamCaptureStatus*), CUstream stream,
                     const Call& call) {
  Allocator* allocator = engine();
  Context* context =
      allocator == nullptr ? nullptr : allocator->registry().capturing_context(stream);
  if (context == nullptr) return call();
  return context->ordering().end_capture(stream, call, [&] {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return is_capturing != nullptr && is_capturing(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
  });
}

// A stream that is destroyed while it captures ends its capture.
template <typename Call>
CUresult destroy_stream(CUstream stream, const Call& call) {
  Allocator* allocator = engine();
  if (allocator == nullptr) return call();
  Context* owner = allocator->registry().context_of(stream);
  Context* capturing = allocator->registry().capturing_context(stream);
  CUresult result = CUDA_SUCCESS;
  if (capturing == nullptr) {
    result = call();
  } else {
    capturing->ordering().end_capture(
        stream, [&] { return result = call(); }, [&] { return result != CUDA_SUCCESS; });
  }
  if (result == CUDA_SUCCESS && owner != nullptr) owner->host_work().stream_destroyed(stream);
  return result;
}

}  // namespace

extern "C" {

CUresult cupool_hook_cuCtxSynchronize() {
  CUPOOL_REAL_OR_RETURN(cuCtxSynchronize);
  Allocator* allocator = engine();
  if (allocator == nullptr) return real.cuCtxSynchronize();
  return allocator->synchronize(allocator->registry().current(), true,
                                [&] { return real.cuCtxSynchronize(); });
}

CUresult cupool_hook_cuCtxSynchronize_v2(CUcontext handle) {
  CUPOOL_REAL_OR_RETURN(cuCtxSynchronize_v2);
  Allocator* allocator = engine();
  if (allocator == nullptr) return real.cuCtxSynchronize_v2(handle);
  // A null context means the current one.
  Context* context =
      handle == nullptr ? allocator->registry().current() : allocator->registry().find(handle);
  return allocator->synchronize(context, true, [&] { return real.cuCtxSynchronize_v2(handle); });
}

CUresult cupool_hook_cuCtxDestroy(CUcontext handle) {
  CUPOOL_REAL_OR_RETURN(cuCtxDestroy);
  return destroy_context(handle, [&] { return real.cuCtxDestroy(handle); });
}

CUresult cupool_hook_cuCtxDestroy_v2(CUcontext handle) {
  CUPOOL_REAL_OR_RETURN(cuCtxDestroy_v2);
  return destroy_context(handle, [&] { return real.cuCtxDestroy_v2(handle); });
}

CUresult cupool_hook_cuDevicePrimaryCtxRelease(CUdevice device) {
  CUPOOL_REAL_OR_RETURN(cuDevicePrimaryCtxRelease);
  return end_primary(real, device, [&] { return real.cuDevicePrimaryCtxRelease(device); });
}

CUresult cupool_hook_cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  CUPOOL_REAL_OR_RETURN(cuDevicePrimaryCtxRelease_v2);
  return end_primary(real, device, [&] { return real.cuDevicePrimaryCtxRelease_v2(device); });
}

CUresult cupool_hook_cuDevicePrimaryCtxReset(CUdevice device) {
  CUPOOL_REAL_OR_RETURN(cuDevicePrimaryCtxReset);
  return end_primary(real, device, [&] { return real.cuDevicePrimaryCtxReset(device); });
}

CUresult cupool_hook_cuDevicePrimaryCtxReset_v2(CUdevice device) {
  CUPOOL_REAL_OR_RETURN(cuDevicePrimaryCtxReset_v2);
  return end_primary(real, device, [&] { return real.cuDevicePrimaryCtxReset_v2(device); });
}

CUresult cupool_hook_cuGreenCtxCreate(void** green, void* resources, CUdevice device,
                                      unsigned int flags) {
  CUPOOL_REAL_OR_RETURN(cuGreenCtxCreate);
  // Before the call: no work of a green context may be there when a block is handed out again.
  if (Allocator* allocator = started_engine()) allocator->stop_serving();
  return real.cuGreenCtxCreate(green, resources, device, flags);
}

CUresult cupool_hook_cuStreamBeginCapture(CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuStreamBeginCapture);
  return begin_capture(stream, [&] { return real.cuStreamBeginCapture(stream); });
}

CUresult cupool_hook_cuStreamBeginCapture_ptsz(CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuStreamBeginCapture_ptsz);
  return begin_capture(per_thread(stream), [&] { return real.cuStreamBeginCapture_ptsz(stream); });
}

CUresult cupool_hook_cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  CUPOOL_REAL_OR_RETURN(cuStreamBeginCapture_v2);
  return begin_capture(stream, [&] { return real.cuStreamBeginCapture_v2(stream, mode); });
}

CUresult cupool_hook_cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  CUPOOL_REAL_OR_RETURN(cuStreamBeginCapture_v2_ptsz);
  return begin_capture(per_thread(stream),
                       [&] { return real.cuStreamBeginCapture_v2_ptsz(stream, mode); });
}

CUresult cupool_hook_cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                                 const CUgraphNode* dependencies, const void* edges,
                                                 size_t count, CUstreamCaptureMode mode) {
  CUPOOL_REAL_OR_RETURN(cuStreamBeginCaptureToGraph);
  return begin_capture(stream, [&] {
    return real.cuStreamBeginCaptureToGraph(stream, graph, dependencies, edges, count, mode);
  });
}

CUresult cupool_hook_cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                                      const CUgraphNode* dependencies,
                                                      const void* edges, size_t count,
                                                      CUstreamCaptureMode mode) {
  CUPOOL_REAL_OR_RETURN(cuStreamBeginCaptureToGraph_ptsz);
  return begin_capture(per_thread(stream), [&] {
    return real.cuStreamBeginCaptureToGraph_ptsz(stream, graph, dependencies, edges, count, mode);
  });
}

CUresult cupool_hook_cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  CUPOOL_REAL_OR_RETURN(cuStreamEndCapture);
  return end_capture(real.cuStreamIsCapturing, stream,
                     [&] { return real.cuStreamEndCapture(stream, graph); });
}

CUresult cupool_hook_cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  CUPOOL_REAL_OR_RETURN(cuStreamEndCapture_ptsz);
  return end_capture(real.cuStreamIsCapturing_ptsz, per_thread(stream),
                     [&] { return real.cuStreamEndCapture_ptsz(stream, graph); });
}

CUresult cupool_hook_cuStreamDestroy(CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuStreamDestroy);
  return destroy_stream(stream, [&] { return real.cuStreamDestroy(stream); });
}

CUresult cupool_hook_cuStreamDestroy_v2(CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuStreamDestroy_v2);
  return destroy_stream(stream, [&] { return real.cuStreamDestroy_v2(stream); });
}

}  // extern "C"
