// SPDX-License-Identifier: Apache-2.0
// Exported: streams, what they wait for and what is asked about them.
#include "driver/entry.h"
#include "driver/newer.h"

namespace cupool::sim {

namespace {

CUresult create(Entry& in, CUstream* handle, unsigned flags, int priority) {
  Context* context = nullptr;
  const CUresult result = in.current(&context);
  if (result != CUDA_SUCCESS) return result;
  if (handle == nullptr || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  if (!take_stream_memory(*context)) return CUDA_ERROR_OUT_OF_MEMORY;
  GreenContext* const green = current_context().green;
  if (green != nullptr) flags = CU_STREAM_NON_BLOCKING;  // in no implicit order (green.cpp)
  Stream& stream = create_stream(*context, flags, priority);
  stream.green = green;
  *handle = reinterpret_cast<CUstream>(&stream);
  in.costs(3000);
  return CUDA_SUCCESS;
}

// Returns at once, busy or not: the work goes on without its stream.
CUresult destroy(Entry& in, CUstream handle) {
  Stream* stream = nullptr;
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const CUresult result = in.stream(handle, &stream);
  // What is left of a green context that has ended is lost (cuda.h, cuGreenCtxDestroy).
  const bool lost = stream != nullptr && stream->green != nullptr && !stream->green->alive;
  if (stream != nullptr && !lost) destroy_stream(*stream);
  in.costs(6000);
  return result;
}

CUresult query(Entry& in, CUstream handle) {
  World& w = world();
  Stream* stream = nullptr;
  CUresult result = in.stream(handle, &stream);
  if (result == CUDA_SUCCESS) result = w.captures.refuse_on(*stream);
  if (result == CUDA_SUCCESS) result = w.captures.refuse_unsafe();
  if (result != CUDA_SUCCESS) return result;
  in.costs(190);
  const std::vector<OpRef> ops = tails(*stream);
  if (!w.engine.finished(ops)) {
    if (w.settings.mode != Mode::late || ++stream->polls <= w.settings.polls) {
      return CUDA_ERROR_NOT_READY;
    }
    if (!w.engine.hasten(in.lock(), ops)) {
      const CUresult sticky = stream->context->sticky;
      return sticky != CUDA_SUCCESS ? sticky : CUDA_ERROR_NOT_READY;
    }
  }
  stream->polls = 0;
  w.engine.observe(ops);
  return stream->context->sticky;
}

CUresult synchronize(Entry& in, CUstream handle) {
  World& w = world();
  Stream* stream = nullptr;
  CUresult result = in.stream(handle, &stream);
  if (result == CUDA_SUCCESS) result = w.captures.refuse_on(*stream);
  if (result == CUDA_SUCCESS) result = w.captures.refuse_unsafe();
  if (result != CUDA_SUCCESS) return result;
  Context& context = *stream->context;
  result = wait_for(in, context, tails(*stream));
  if (result == CUDA_SUCCESS) w.after_host_sync(*context.device);
  in.costs(350);
  return result;
}

CUresult wait_event(Entry& in, CUstream handle, CUevent event_handle, unsigned flags) {
  World& w = world();
  Stream* stream = nullptr;
  Event* event = nullptr;
  CUresult result = in.stream(handle, &stream);
  if (result == CUDA_SUCCESS) result = in.event(event_handle, &event);
  if (result != CUDA_SUCCESS) return result;
  bool captured = false;
  result = w.captures.wait(*stream, *event, (flags & CU_EVENT_WAIT_EXTERNAL) != 0, &captured);
  if (captured || result != CUDA_SUCCESS) return result;
  result = w.captures.refuse_legacy(*stream);
  if (result != CUDA_SUCCESS) return result;
  in.costs(67);
  // Of an event that is complete there is nothing to wait for: that is no operation of a blocking
  // stream (docs/measurements/2026-11-28-blocking-streams).
  const bool is_complete =
      event->record == nullptr || (stream->blocking() && w.engine.host_knows(*event->record));
  if (is_complete) return CUDA_SUCCESS;
  OpSpec spec;
  spec.name = "wait for event";
  submit(*stream, spec, {event->record});
  return CUDA_SUCCESS;
}

CUresult get_context(Entry& in, CUstream handle, CUcontext* context) {
  Stream* stream = nullptr;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = in.stream(handle, &stream);
  if (result == CUDA_SUCCESS) *context = NamedContext{stream->context, stream->green}.handle();
  return result;
}

// cuda.h: of a stream of a green context, the primary one.
CUresult get_context_v2(Entry& in, CUstream handle, CUcontext* context, CUgreenCtx* green) {
  Stream* stream = nullptr;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = in.stream(handle, &stream);
  if (result != CUDA_SUCCESS) return result;
  *context = stream->context->handle();
  if (green != nullptr) *green = stream->green == nullptr ? nullptr : stream->green->handle();
  return CUDA_SUCCESS;
}

CUresult get_device(Entry& in, CUstream handle, CUdevice* device) {
  Stream* stream = nullptr;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = in.stream(handle, &stream);
  if (result == CUDA_SUCCESS) *device = stream->context->device->ordinal;
  return result;
}

CUresult get_flags(Entry& in, CUstream handle, unsigned* flags) {
  Stream* stream = nullptr;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = in.stream(handle, &stream);
  if (result != CUDA_SUCCESS) return result;
  *flags = stream->kind == Stream::Kind::non_blocking ? CU_STREAM_NON_BLOCKING : 0;
  return CUDA_SUCCESS;
}

CUresult get_priority(Entry& in, CUstream handle, int* priority) {
  Stream* stream = nullptr;
  if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = in.stream(handle, &stream);
  if (result == CUDA_SUCCESS) *priority = stream->priority;
  return result;
}

CUresult get_id(Entry& in, CUstream handle, unsigned long long* id) {
  Stream* stream = nullptr;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = in.stream(handle, &stream);
  if (result == CUDA_SUCCESS) *id = stream->id;
  return result;
}

CUresult host_function(Entry& in, CUstream handle, CUhostFn function, void* data) {
  Stream* stream = nullptr;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = in.stream(handle, &stream);
  if (result != CUDA_SUCCESS) return result;
  OpSpec spec;
  spec.name = "host function";
  spec.host = [function, data] { function(data); };
  spec.host_code = reinterpret_cast<const void*>(function);
  return perform(*stream, CU_GRAPH_NODE_TYPE_HOST, std::move(spec));
}

CUresult callback(Entry& in, CUstream handle, CUstreamCallback function, void* data,
                  unsigned flags) {
  Stream* stream = nullptr;
  if (function == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = in.stream(handle, &stream);
  if (result != CUDA_SUCCESS) return result;
  // cuda.h: stream callbacks cannot be captured, unlike host functions.
  if (stream->capture != nullptr) return world().captures.refuse_on(*stream);
  OpSpec spec;
  spec.name = "stream callback";
  spec.host = [function, data, handle] { function(handle, CUDA_SUCCESS, data); };
  spec.host_code = reinterpret_cast<const void*>(function);
  return perform(*stream, CU_GRAPH_NODE_TYPE_HOST, std::move(spec));
}

}  // namespace

SIM_DEFINE(cuStreamCreate, (CUstream * stream, unsigned int flags), create(in, stream, flags, 0))
SIM_DEFINE(cuStreamCreateWithPriority, (CUstream * stream, unsigned int flags, int priority),
           create(in, stream, flags, priority))
SIM_DEFINE(cuStreamDestroy, (CUstream stream), destroy(in, stream))
SIM_DEFINE(cuStreamDestroy_v2, (CUstream stream), destroy(in, stream))
SIM_TWINS(cuStreamQuery, cuStreamQuery_ptsz, (CUstream stream), query(in, stream))
SIM_TWINS(cuStreamSynchronize, cuStreamSynchronize_ptsz, (CUstream stream), synchronize(in, stream))
SIM_TWINS(cuStreamWaitEvent, cuStreamWaitEvent_ptsz,
          (CUstream stream, CUevent event, unsigned int flags),
          wait_event(in, stream, event, flags))
SIM_TWINS(cuStreamGetCtx, cuStreamGetCtx_ptsz, (CUstream stream, CUcontext* context),
          get_context(in, stream, context))
SIM_TWINS(cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz,
          (CUstream stream, CUcontext* context, CUgreenCtx* green),
          get_context_v2(in, stream, context, green))
SIM_TWINS(cuStreamGetDevice, cuStreamGetDevice_ptsz, (CUstream stream, CUdevice* device),
          get_device(in, stream, device))
SIM_TWINS(cuStreamGetFlags, cuStreamGetFlags_ptsz, (CUstream stream, unsigned int* flags),
          get_flags(in, stream, flags))
SIM_TWINS(cuStreamGetPriority, cuStreamGetPriority_ptsz, (CUstream stream, int* priority),
          get_priority(in, stream, priority))
SIM_TWINS(cuStreamGetId, cuStreamGetId_ptsz, (CUstream stream, unsigned long long* id),
          get_id(in, stream, id))
SIM_TWINS(cuLaunchHostFunc, cuLaunchHostFunc_ptsz, (CUstream stream, CUhostFn function, void* data),
          host_function(in, stream, function, data))
SIM_TWINS(cuLaunchHostFunc_v2, cuLaunchHostFunc_v2_ptsz,
          (CUstream stream, CUhostFn function, void* data, unsigned int sync_mode),
          sync_mode > 1 ? CUDA_ERROR_INVALID_VALUE : host_function(in, stream, function, data))
SIM_TWINS(cuStreamAddCallback, cuStreamAddCallback_ptsz,
          (CUstream stream, CUstreamCallback function, void* data, unsigned int flags),
          callback(in, stream, function, data, flags))

}  // namespace cupool::sim
