// SPDX-License-Identifier: Apache-2.0
// Driver hooks of contexts and streams: synchronisation, the end of contexts (contract 10),
// captures (contract 9).
#include "engine/context/attachments.h"
#include "engine/context/green_contexts.h"
#include "engine/context/primary_contexts.h"
#include "engine/context/thread_order.h"
#include "engine/reclaim/device_use.h"
#include "engine/reclaim/lane.h"
#include "engine/reclaim/stream_use.h"
#include "entry/default_stream.h"
#include "entry/forward.h"
#include "entry/hooks.h"
#include "process/lifecycle.h"

using cupool::cuda::Driver;
using cupool::engine::Allocator;
using cupool::engine::Attachments;
using cupool::engine::Context;
using cupool::engine::ContextRegistry;
using cupool::engine::GreenContexts;
using cupool::engine::Lane;
using cupool::engine::PrimaryContexts;
using cupool::engine::Synchronization;
using cupool::engine::ThreadOrder;
using cupool::entry::per_thread;
using cupool::observe::Observer;
using cupool::process::engine;
using cupool::process::started_engine;

namespace {

// `call` may change the calling thread's current context, whatever it returns.
template <typename Call>
CUresult change_current(const Call& call) {
  ContextRegistry::current_may_change();
  const CUresult result = call();
  ContextRegistry::current_may_change();
  ThreadOrder::current_may_change();
  return result;
}

// Page-locked memory that lies idle goes back once no context has work, so each has to be known.
// Only here it is certain that the context lives: another thread may end it at any later time.
void know_current() {
  if (!cupool::engine::several_contexts()) return;
  Allocator* const allocator = engine();
  if (allocator != nullptr && allocator->host().blocks().any()) allocator->registry().current();
}

// The same for a call that makes `context` current.
template <typename Call>
CUresult make_current(CUcontext context, const Call& call) {
  const CUresult result = change_current(call);
  if (result != CUDA_SUCCESS || context == nullptr) return result;
  Lane::context_seen(context);
  know_current();
  return result;
}

// The lane before a call that ends the primary context of `device`, without an engine.
void primary_ends(const Driver& real, CUdevice device) {
  const CUcontext primary = PrimaryContexts::of_process().known(device);
  if (primary != nullptr) Lane::context_ends(&real, primary);
}

template <typename Call>
CUresult release_primary(const Driver& real, CUdevice device, const Call& call) {
  ThreadOrder::destroys_stream();
  if (Allocator* const allocator = engine()) {
    return allocator->endings().release_primary(device, call);
  }
  PrimaryContexts& primaries = PrimaryContexts::of_process();
  if (primaries.at_last_reference(device)) primary_ends(real, device);
  return primaries.release(device, call);
}

template <typename Call>
CUresult reset_primary(const Driver& real, CUdevice device, const Call& call) {
  ThreadOrder::destroys_stream();
  if (Allocator* const allocator = engine()) {
    return allocator->endings().reset_primary(device, call);
  }
  primary_ends(real, device);
  return call();
}

// A green context holds the primary one, as a retain does. Under the lock of that.
void green_made(const Driver& real, void* green, CUdevice device) {
  CUcontext handle = nullptr;
  CUcontext primary = nullptr;
  if (real.cuCtxFromGreenCtx == nullptr || real.cuCtxFromGreenCtx(&handle, green) != CUDA_SUCCESS ||
      real.cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS) {
    return;
  }
  // The green one's reference stays.
  real.cuDevicePrimaryCtxRelease_v2 != nullptr ? real.cuDevicePrimaryCtxRelease_v2(device)
                                               : real.cuDevicePrimaryCtxRelease(device);
  if (!GreenContexts::of_process().add(green, {handle, primary, device})) return;
  PrimaryContexts::of_process().retain(device, &primary, [] { return CUDA_SUCCESS; });
}

template <typename Call>
CUresult destroy_context(const Driver& real, CUcontext handle, const Call& call) {
  ThreadOrder::destroys_stream();
  if (handle != nullptr) Lane::context_ends(&real, handle);
  const auto destroy = [&] {
    const CUresult result = change_current(call);
    if (result == CUDA_SUCCESS) Attachments::of_process().forget(handle);
    return result;
  };
  Allocator* const allocator = engine();
  return allocator == nullptr ? destroy() : allocator->endings().destroy(handle, destroy);
}

// A context that the call has created, or `seen` as held: its device is now in use, and its
// creation may need cupool's idle memory.
template <typename Call>
CUresult make_context(CUdevice device, const CUcontext* context, const Call& real,
                      Lane::Seen seen = Lane::Seen::current) {
  const auto call = [&] { return change_current(real); };
  CUresult result = call();
  Allocator* allocator = result == CUDA_ERROR_OUT_OF_MEMORY ? started_engine() : engine();
  if (result == CUDA_ERROR_OUT_OF_MEMORY && allocator != nullptr) {
    result = allocator->out_of_memory().retry_on(device, call);
  }
  if (result != CUDA_SUCCESS) return result;
  Lane::context_seen(*context, seen);
  if (allocator != nullptr) {
    allocator->registry().devices().device_in_use(device);
  } else {
    cupool::engine::note_device_in_use(device);
  }
  if (seen == Lane::Seen::current) know_current();
  return result;
}

// The program's wait for a context, which covers what it has freed in stream order, too.
template <typename Call>
CUresult synchronize(Allocator& allocator, Context* context, const Call& call) {
  if (context != nullptr) allocator.default_pools().async().idle().covering_epoch(*context);
  return allocator.synchronization().of_context(context, Synchronization::Failure::counted, call);
}

// I3: no fence is recorded from the begin of a capture to its end.
template <typename Call>
CUresult begin_capture(CUstream stream, const Call& call) {
  Allocator* allocator = started_engine();
  if (allocator == nullptr) {
    Observer* observer = cupool::process::observer();
    return observer == nullptr ? call() : observer->begin_capture(stream, call);
  }
  allocator->default_pools().async().idle().before_capture();
  return allocator->streams().begin_capture(stream, call);
}

template <typename Call>
CUresult end_capture(CUstream stream, const Call& call) {
  Allocator* allocator = engine();
  if (allocator == nullptr) {
    Observer* observer = cupool::process::observer();
    return observer == nullptr ? call() : observer->end_capture(stream, call);
  }
  return allocator->streams().end_capture(stream, call);
}

template <typename Call>
CUresult destroy_stream(CUstream stream, const Call& call) {
  if (stream != nullptr) Lane::destroys(stream);
  ThreadOrder::destroys_stream();
  cupool::engine::StreamUse::wait_for_others(stream);
  Allocator* allocator = engine();
  if (allocator == nullptr) {
    Observer* observer = cupool::process::observer();
    return observer == nullptr ? call() : observer->destroy_stream(stream, call);
  }
  allocator->default_pools().async().stream_ends(stream);
  return allocator->streams().destroy(stream, call);
}

}  // namespace

extern "C" {

CUresult cupool_hook_cuCtxSynchronize() {
  CUPOOL_REAL_OR_RETURN(cuCtxSynchronize);
  Allocator* allocator = engine();
  if (allocator == nullptr) return real.cuCtxSynchronize();
  return synchronize(*allocator, allocator->registry().current_for_certain(),
                     [&] { return real.cuCtxSynchronize(); });
}

CUresult cupool_hook_cuCtxSynchronize_v2(CUcontext handle) {
  CUPOOL_REAL_OR_RETURN(cuCtxSynchronize_v2);
  Allocator* allocator = engine();
  if (allocator == nullptr) return real.cuCtxSynchronize_v2(handle);
  // A null context means the current one.
  Context* context = handle == nullptr ? allocator->registry().current_for_certain()
                                       : allocator->registry().find(handle);
  return synchronize(*allocator, context, [&] { return real.cuCtxSynchronize_v2(handle); });
}

CUresult cupool_hook_cuCtxDestroy(CUcontext handle) {
  CUPOOL_REAL_OR_RETURN(cuCtxDestroy);
  return destroy_context(real, handle, [&] { return real.cuCtxDestroy(handle); });
}

CUresult cupool_hook_cuCtxDestroy_v2(CUcontext handle) {
  CUPOOL_REAL_OR_RETURN(cuCtxDestroy_v2);
  return destroy_context(real, handle, [&] { return real.cuCtxDestroy_v2(handle); });
}

CUresult cupool_hook_cuDevicePrimaryCtxRelease(CUdevice device) {
  CUPOOL_REAL_OR_RETURN(cuDevicePrimaryCtxRelease);
  return release_primary(real, device, [&] { return real.cuDevicePrimaryCtxRelease(device); });
}

CUresult cupool_hook_cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  CUPOOL_REAL_OR_RETURN(cuDevicePrimaryCtxRelease_v2);
  return release_primary(real, device, [&] { return real.cuDevicePrimaryCtxRelease_v2(device); });
}

CUresult cupool_hook_cuDevicePrimaryCtxReset(CUdevice device) {
  CUPOOL_REAL_OR_RETURN(cuDevicePrimaryCtxReset);
  return reset_primary(real, device, [&] { return real.cuDevicePrimaryCtxReset(device); });
}

CUresult cupool_hook_cuDevicePrimaryCtxReset_v2(CUdevice device) {
  CUPOOL_REAL_OR_RETURN(cuDevicePrimaryCtxReset_v2);
  return reset_primary(real, device, [&] { return real.cuDevicePrimaryCtxReset_v2(device); });
}

CUresult cupool_hook_cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  CUPOOL_REAL_OR_RETURN(cuDevicePrimaryCtxRetain);
  PrimaryContexts& primaries = PrimaryContexts::of_process();
  const auto retain = [&] {
    // Not in a forked child, where the mutex may be held for ever.
    const auto lock = engine() == nullptr ? PrimaryContexts::Lock() : primaries.lock(device);
    return primaries.retain(device, context,
                            [&] { return real.cuDevicePrimaryCtxRetain(context, device); });
  };
  return make_context(device, context, retain, Lane::Seen::held);
}

CUresult cupool_hook_cuCtxCreate(CUcontext* context, unsigned int flags, CUdevice device) {
  CUPOOL_REAL_OR_RETURN(cuCtxCreate);
  return make_context(device, context, [&] { return real.cuCtxCreate(context, flags, device); });
}

CUresult cupool_hook_cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  CUPOOL_REAL_OR_RETURN(cuCtxCreate_v2);
  return make_context(device, context, [&] { return real.cuCtxCreate_v2(context, flags, device); });
}

CUresult cupool_hook_cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* affinity, int count,
                                    unsigned int flags, CUdevice device) {
  CUPOOL_REAL_OR_RETURN(cuCtxCreate_v3);
  return make_context(device, context,
                      [&] { return real.cuCtxCreate_v3(context, affinity, count, flags, device); });
}

CUresult cupool_hook_cuCtxCreate_v4(CUcontext* context, void* parameters, unsigned int flags,
                                    CUdevice device) {
  CUPOOL_REAL_OR_RETURN(cuCtxCreate_v4);
  return make_context(device, context,
                      [&] { return real.cuCtxCreate_v4(context, parameters, flags, device); });
}

CUresult cupool_hook_cuGLCtxCreate(CUcontext* context, unsigned int flags, CUdevice device) {
  CUPOOL_REAL_OR_RETURN(cuGLCtxCreate);
  return make_context(device, context, [&] { return real.cuGLCtxCreate(context, flags, device); });
}

CUresult cupool_hook_cuGLCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  CUPOOL_REAL_OR_RETURN(cuGLCtxCreate_v2);
  return make_context(device, context,
                      [&] { return real.cuGLCtxCreate_v2(context, flags, device); });
}

CUresult cupool_hook_cuVDPAUCtxCreate(CUcontext* context, unsigned int flags, CUdevice device,
                                      uint32_t display, void* display_query) {
  CUPOOL_REAL_OR_RETURN(cuVDPAUCtxCreate);
  return make_context(device, context, [&] {
    return real.cuVDPAUCtxCreate(context, flags, device, display, display_query);
  });
}

CUresult cupool_hook_cuVDPAUCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device,
                                         uint32_t display, void* display_query) {
  CUPOOL_REAL_OR_RETURN(cuVDPAUCtxCreate_v2);
  return make_context(device, context, [&] {
    return real.cuVDPAUCtxCreate_v2(context, flags, device, display, display_query);
  });
}

CUresult cupool_hook_cuCtxSetCurrent(CUcontext context) {
  CUPOOL_REAL_OR_RETURN(cuCtxSetCurrent);
  return make_current(context, [&] { return real.cuCtxSetCurrent(context); });
}

CUresult cupool_hook_cuCtxPushCurrent(CUcontext context) {
  CUPOOL_REAL_OR_RETURN(cuCtxPushCurrent);
  return make_current(context, [&] { return real.cuCtxPushCurrent(context); });
}

CUresult cupool_hook_cuCtxPushCurrent_v2(CUcontext context) {
  CUPOOL_REAL_OR_RETURN(cuCtxPushCurrent_v2);
  return make_current(context, [&] { return real.cuCtxPushCurrent_v2(context); });
}

CUresult cupool_hook_cuCtxPopCurrent(CUcontext* context) {
  CUPOOL_REAL_OR_RETURN(cuCtxPopCurrent);
  return change_current([&] { return real.cuCtxPopCurrent(context); });
}

CUresult cupool_hook_cuCtxPopCurrent_v2(CUcontext* context) {
  CUPOOL_REAL_OR_RETURN(cuCtxPopCurrent_v2);
  return change_current([&] { return real.cuCtxPopCurrent_v2(context); });
}

CUresult cupool_hook_cuCtxAttach(CUcontext* context, unsigned int flags) {
  CUPOOL_REAL_OR_RETURN(cuCtxAttach);
  const CUresult result = change_current([&] { return real.cuCtxAttach(context, flags); });
  if (result != CUDA_SUCCESS) return result;
  Attachments::of_process().add(*context);
  Lane::context_seen(*context);
  return result;
}

CUresult cupool_hook_cuCtxDetach(CUcontext context) {
  CUPOOL_REAL_OR_RETURN(cuCtxDetach);
  const auto call = [&] { return real.cuCtxDetach(context); };
  if (!Attachments::of_process().any(context)) return destroy_context(real, context, call);
  const CUresult result = change_current(call);
  if (result == CUDA_SUCCESS) Attachments::of_process().remove(context);
  return result;
}

CUresult cupool_hook_cuGreenCtxCreate(void** green, void* resources, CUdevice device,
                                      unsigned int flags) {
  CUPOOL_REAL_OR_RETURN(cuGreenCtxCreate);
  // Before the call: no block may be reused once a green context has work. Its memory is the
  // primary context's, but an event of it covers its own work only (cuda.h, cuCtxRecordEvent).
  Lane::leave_unknown(real, "cuGreenCtxCreate");
  Allocator* const allocator = started_engine();
  if (allocator == nullptr) return real.cuGreenCtxCreate(green, resources, device, flags);
  allocator->step_aside().stop_serving(
      "the program uses green contexts, whose events do not cover all work on their memory");
  const auto lock = PrimaryContexts::of_process().lock(device);
  const CUresult result = real.cuGreenCtxCreate(green, resources, device, flags);
  if (result == CUDA_SUCCESS) green_made(real, *green, device);
  return result;
}

// As a release of the primary context, which may be the last one.
CUresult cupool_hook_cuGreenCtxDestroy(void* green) {
  CUPOOL_REAL_OR_RETURN(cuGreenCtxDestroy);
  Allocator* const allocator = engine();
  GreenContexts& greens = GreenContexts::of_process();
  const auto known = allocator == nullptr ? std::nullopt : greens.find(green);
  if (!known) return change_current([&] { return real.cuGreenCtxDestroy(green); });
  CUresult answer = CUDA_SUCCESS;
  // One that a reset has ended may hold the primary context still.
  const auto destroy = [&] {
    greens.remove(green);
    allocator->registry().forget_found();
    answer = real.cuGreenCtxDestroy(green);
    if (answer == CUDA_SUCCESS || answer == CUDA_ERROR_CONTEXT_IS_DESTROYED) return CUDA_SUCCESS;
    greens.add(green, *known);
    return answer;
  };
  change_current([&] { return release_primary(real, known->device, destroy); });
  return answer;
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

CUresult cupool_hook_cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode,
                                                   CUgraph graph, void* callback, void* data) {
  CUPOOL_REAL_OR_RETURN(cuStreamBeginRecaptureToGraph);
  return begin_capture(stream, [&] {
    return real.cuStreamBeginRecaptureToGraph(stream, mode, graph, callback, data);
  });
}

CUresult cupool_hook_cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode,
                                                        CUgraph graph, void* callback, void* data) {
  CUPOOL_REAL_OR_RETURN(cuStreamBeginRecaptureToGraph_ptsz);
  return begin_capture(per_thread(stream), [&] {
    return real.cuStreamBeginRecaptureToGraph_ptsz(stream, mode, graph, callback, data);
  });
}

CUresult cupool_hook_cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  CUPOOL_REAL_OR_RETURN(cuStreamEndCapture);
  return end_capture(stream, [&] { return real.cuStreamEndCapture(stream, graph); });
}

CUresult cupool_hook_cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  CUPOOL_REAL_OR_RETURN(cuStreamEndCapture_ptsz);
  return end_capture(per_thread(stream),
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
