// Driver hooks of contexts and streams: synchronisation, the end of contexts, captures.
#include <atomic>
#include <map>
#include <mutex>

#include "core/device_use.h"
#include "core/stream_use.h"
#include "entry/forward.h"
#include "entry/hooks.h"
#include "process/context_visits.h"
#include "process/lifecycle.h"

using cupool::core::Allocator;
using cupool::core::Context;
using cupool::core::ContextRegistry;
using cupool::core::Observer;
using cupool::process::engine;
using cupool::process::started_engine;

namespace {

// The calling thread's current context may be another one after `call`, whatever it returns.
template <typename Call>
CUresult change_current(const Call& call) {
  ContextRegistry::current_may_change();
  const CUresult result = call();
  ContextRegistry::current_may_change();
  return result;
}

// Handles of primary contexts, as the program's own calls were told them: asking the driver takes a
// reference, and one that it then refuses to take back keeps the context alive.
std::atomic<CUcontext> primaries[cupool::stats::kMaxDevices];

std::atomic<CUcontext>* primary_of(CUdevice device) {
  return device >= 0 && device < cupool::stats::kMaxDevices ? &primaries[device] : nullptr;
}

// A second question after a failure: events of a context that is taken for alive are used again.
bool primary_is_active(const cupool::cuda::Driver& real, CUdevice device) {
  unsigned int flags = 0;
  int active = 0;
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (real.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS) break;
  }
  return active != 0;
}

// After the driver has ended contexts of a device: those that are really gone.
void primary_context_ended(Allocator& allocator, const cupool::cuda::Driver& real, CUdevice device,
                           CUcontext primary) {
  if (primary == nullptr || primary_is_active(real, device)) return;
  if (Context* context = allocator.registry().find(primary)) allocator.context_gone(*context);
}

// The handle of a device's primary context if it is active; one that the program did not ask for
// under our eyes is retained for a moment.
CUcontext active_primary(const cupool::cuda::Driver& real, CUdevice device) {
  CUcontext context = nullptr;
  if (!primary_is_active(real, device)) return nullptr;
  if (const std::atomic<CUcontext>* known = primary_of(device)) context = known->load();
  if (context != nullptr) return context;
  if (real.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS) return nullptr;
  real.cuDevicePrimaryCtxRelease_v2 != nullptr ? real.cuDevicePrimaryCtxRelease_v2(device)
                                               : real.cuDevicePrimaryCtxRelease(device);
  return context;
}

template <typename Call>
CUresult end_primary(const cupool::cuda::Driver& real, CUdevice device, const Call& call) {
  Allocator* allocator = engine();
  if (allocator == nullptr) return call();
  const cupool::process::ContextPause no_visits;
  const CUcontext primary = active_primary(real, device);
  const CUresult result = call();
  if (result == CUDA_SUCCESS) primary_context_ended(*allocator, real, device, primary);
  return result;
}

// How often the program has attached itself to a context: a detach beyond that destroys it.
class Attachments {
 public:
  void add(CUcontext context) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++counts_[context];
  }
  /// Whether there is one.
  bool any(CUcontext context) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return counts_.count(context) != 0;
  }
  void remove(CUcontext context) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = counts_.find(context);
    if (found != counts_.end() && --found->second == 0) counts_.erase(found);
  }
  /// The context is gone, and its handle may be another's.
  void forget(CUcontext context) {
    const std::lock_guard<std::mutex> lock(mutex_);
    counts_.erase(context);
  }

 private:
  std::mutex mutex_;
  std::map<CUcontext, unsigned> counts_;
};

Attachments& attachments() {
  static auto* const all = new Attachments;  // never destroyed
  return *all;
}

template <typename Call>
CUresult destroy_context(CUcontext handle, const Call& call) {
  Allocator* allocator = engine();
  Context* context = allocator == nullptr ? nullptr : allocator->registry().find(handle);
  const cupool::process::ContextPause no_visits;
  const CUresult result = change_current(call);
  if (result != CUDA_SUCCESS) return result;
  attachments().forget(handle);
  if (context != nullptr) allocator->context_gone(*context);
  return result;
}

// A new context: its device is in use from now on, and it may need memory that lies idle with us.
template <typename Call>
CUresult make_context(CUdevice device, const Call& real) {
  const auto call = [&] { return change_current(real); };
  CUresult result = call();
  Allocator* allocator = engine();
  if (result == CUDA_ERROR_OUT_OF_MEMORY && allocator != nullptr) {
    result = allocator->retry_on(device, call);
  }
  if (result != CUDA_SUCCESS) return result;
  if (allocator != nullptr) {
    allocator->registry().device_in_use(device);
  } else {
    cupool::core::note_device_in_use(device);
  }
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
  if (allocator == nullptr) {
    Observer* observer = cupool::process::observer();
    return observer == nullptr ? call() : observer->begin_capture(stream, call);
  }
  Context* context = allocator->registry().context_of(stream);
  return context == nullptr ? call() : context->ordering().begin_capture(stream, call);
}

template <typename Call>
CUresult end_capture(CUresult (*is_capturing)(CUstream, CUstreamCaptureStatus*), CUstream stream,
                     const Call& call) {
  const auto still_capturing = [&] {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return is_capturing != nullptr && is_capturing(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
  };
  if (Observer* observer = cupool::process::observer()) {
    return observer->end_capture(stream, call, still_capturing);
  }
  Allocator* allocator = engine();
  Context* context =
      allocator == nullptr ? nullptr : allocator->registry().capturing_context(stream);
  if (context == nullptr) return call();
  return context->ordering().end_capture(stream, call, still_capturing);
}

// A stream that is destroyed while it captures ends its capture.
template <typename Call>
CUresult destroy_stream(CUstream stream, const Call& call) {
  cupool::core::StreamUse::wait_for_others(stream);
  Allocator* allocator = engine();
  if (allocator == nullptr) {
    Observer* observer = cupool::process::observer();
    CUresult ended = CUDA_ERROR_UNKNOWN;
    if (observer == nullptr) return call();
    return observer->end_capture(
        stream, [&] { return ended = call(); }, [&] { return ended != CUDA_SUCCESS; });
  }
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
  return allocator->synchronize(allocator->registry().current_for_certain(), true,
                                [&] { return real.cuCtxSynchronize(); });
}

CUresult cupool_hook_cuCtxSynchronize_v2(CUcontext handle) {
  CUPOOL_REAL_OR_RETURN(cuCtxSynchronize_v2);
  Allocator* allocator = engine();
  if (allocator == nullptr) return real.cuCtxSynchronize_v2(handle);
  // A null context means the current one.
  Context* context = handle == nullptr ? allocator->registry().current_for_certain()
                                       : allocator->registry().find(handle);
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

CUresult cupool_hook_cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  CUPOOL_REAL_OR_RETURN(cuDevicePrimaryCtxRetain);
  const CUresult result =
      make_context(device, [&] { return real.cuDevicePrimaryCtxRetain(context, device); });
  if (result == CUDA_SUCCESS) {
    if (std::atomic<CUcontext>* primary = primary_of(device)) primary->store(*context);
  }
  return result;
}

CUresult cupool_hook_cuCtxCreate(CUcontext* context, unsigned int flags, CUdevice device) {
  CUPOOL_REAL_OR_RETURN(cuCtxCreate);
  return make_context(device, [&] { return real.cuCtxCreate(context, flags, device); });
}

CUresult cupool_hook_cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  CUPOOL_REAL_OR_RETURN(cuCtxCreate_v2);
  return make_context(device, [&] { return real.cuCtxCreate_v2(context, flags, device); });
}

CUresult cupool_hook_cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* affinity, int count,
                                    unsigned int flags, CUdevice device) {
  CUPOOL_REAL_OR_RETURN(cuCtxCreate_v3);
  return make_context(device,
                      [&] { return real.cuCtxCreate_v3(context, affinity, count, flags, device); });
}

CUresult cupool_hook_cuCtxCreate_v4(CUcontext* context, void* parameters, unsigned int flags,
                                    CUdevice device) {
  CUPOOL_REAL_OR_RETURN(cuCtxCreate_v4);
  return make_context(device,
                      [&] { return real.cuCtxCreate_v4(context, parameters, flags, device); });
}

CUresult cupool_hook_cuCtxSetCurrent(CUcontext context) {
  CUPOOL_REAL_OR_RETURN(cuCtxSetCurrent);
  return change_current([&] { return real.cuCtxSetCurrent(context); });
}

CUresult cupool_hook_cuCtxPushCurrent(CUcontext context) {
  CUPOOL_REAL_OR_RETURN(cuCtxPushCurrent);
  return change_current([&] { return real.cuCtxPushCurrent(context); });
}

CUresult cupool_hook_cuCtxPushCurrent_v2(CUcontext context) {
  CUPOOL_REAL_OR_RETURN(cuCtxPushCurrent_v2);
  return change_current([&] { return real.cuCtxPushCurrent_v2(context); });
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
  if (result == CUDA_SUCCESS) attachments().add(*context);
  return result;
}

CUresult cupool_hook_cuCtxDetach(CUcontext context) {
  CUPOOL_REAL_OR_RETURN(cuCtxDetach);
  const auto call = [&] { return real.cuCtxDetach(context); };
  if (!attachments().any(context)) return destroy_context(context, call);
  const CUresult result = change_current(call);
  if (result == CUDA_SUCCESS) attachments().remove(context);
  return result;
}

CUresult cupool_hook_cuGreenCtxCreate(void** green, void* resources, CUdevice device,
                                      unsigned int flags) {
  CUPOOL_REAL_OR_RETURN(cuGreenCtxCreate);
  // Before the call: no work of a green context may be there when a block is handed out again.
  if (Allocator* allocator = started_engine()) {
    allocator->stop_serving(
        "the program uses green contexts, which events of a context do not cover");
  }
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
