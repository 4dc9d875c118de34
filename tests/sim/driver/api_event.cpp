// SPDX-License-Identifier: Apache-2.0
// Exported: events.
#include "driver/entry.h"

namespace cupool::sim {

namespace {

CUresult create(Entry& in, CUevent* handle, unsigned flags) {
  Context* context = nullptr;
  const CUresult result = in.current(&context);
  if (result != CUDA_SUCCESS) return result;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto event = std::make_unique<Event>();
  event->context = context;
  event->flags = flags;
  Event* const raw = event.get();
  context->events.emplace(raw, std::move(event));
  world().events.insert(raw);
  *handle = reinterpret_cast<CUevent>(raw);
  return CUDA_SUCCESS;
}

CUresult destroy(CUevent handle) {
  auto* const event = reinterpret_cast<Event*>(handle);
  if (handle == nullptr || world().events.erase(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
  const Context& context = *event->context;
  event->context->events.erase(event);
  return context.sticky;
}

CUresult record(Entry& in, CUevent event_handle, CUstream handle) {
  World& w = world();
  Stream* stream = nullptr;
  Event* event = nullptr;
  CUresult result = in.event(event_handle, &event);
  if (result == CUDA_SUCCESS) result = in.stream(handle, &stream);
  if (result != CUDA_SUCCESS) return result;
  // CUDA Driver API, cuEventRecord: event and stream must be from the same context.
  if (event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != nullptr) return w.captures.record(*stream, *event);
  result = w.captures.refuse_legacy(*stream);
  if (result != CUDA_SUCCESS) return result;
  OpSpec spec;
  spec.name = "event record";
  // Without timing it is no operation of a blocking stream: the event comes behind the legacy
  // stream's work, and a wait for the stream does not
  // (docs/measurements/2026-11-28-blocking-streams).
  const OpRef& legacy = stream->context->legacy.last;
  const bool is_none = stream->blocking() && (event->flags & CU_EVENT_DISABLE_TIMING) != 0 &&
                       legacy != nullptr && !covers(w.engine.host_clock(), legacy->at);
  event->record = is_none ? submit_aside(*stream, spec) : submit(*stream, spec);
  event->of_context = false;
  event->capture_id = 0;
  event->polls = 0;
  in.costs(stream->kind == Stream::Kind::legacy ? 300 : 200);
  return CUDA_SUCCESS;
}

CUresult query(Entry& in, CUevent handle) {
  World& w = world();
  Event* event = nullptr;
  CUresult result = in.event(handle, &event);
  if (result == CUDA_SUCCESS) result = w.captures.refuse_captured(*event);
  if (result == CUDA_SUCCESS) result = w.captures.refuse_unsafe();
  if (result != CUDA_SUCCESS) return result;
  in.costs(200);
  if (event->record == nullptr) return CUDA_SUCCESS;
  Context& context = *event->context;
  const std::vector<OpRef> ops{event->record};
  if (!w.engine.finished(ops)) {
    if (w.settings.mode != Mode::late || ++event->polls <= w.settings.polls) {
      return CUDA_ERROR_NOT_READY;
    }
    if (!w.engine.hasten(in.lock(), ops)) {
      return context.sticky != CUDA_SUCCESS ? context.sticky : CUDA_ERROR_NOT_READY;
    }
  }
  w.engine.observe(ops);
  return context.sticky;
}

CUresult synchronize(Entry& in, CUevent handle) {
  World& w = world();
  Event* event = nullptr;
  CUresult result = in.event(handle, &event);
  if (result == CUDA_SUCCESS) result = w.captures.refuse_captured(*event);
  if (result == CUDA_SUCCESS) result = w.captures.refuse_unsafe();
  if (result != CUDA_SUCCESS) return result;
  Context& context = *event->context;
  result = wait_for(in, context, {event->record});
  // A wait for the event of a context lets no pool give memory back (measured).
  if (result == CUDA_SUCCESS && !event->of_context) w.after_host_sync(*context.device);
  return result;
}

CUresult elapsed(Entry& in, float* milliseconds, CUevent start_handle, CUevent end_handle) {
  Event* start = nullptr;
  Event* end = nullptr;
  CUresult result = in.event(start_handle, &start);
  if (result == CUDA_SUCCESS) result = in.event(end_handle, &end);
  if (result != CUDA_SUCCESS) return result;
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool timing = ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) == 0;
  if (!timing || start->record == nullptr || end->record == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!world().engine.finished({start->record, end->record})) return CUDA_ERROR_NOT_READY;
  const auto from = static_cast<double>(start->record->finish_ns);
  const auto to = static_cast<double>(end->record->finish_ns);
  *milliseconds = static_cast<float>((to - from) / 1e6);
  return CUDA_SUCCESS;
}

}  // namespace

SIM_DEFINE(cuEventCreate, (CUevent * event, unsigned int flags), create(in, event, flags))
SIM_DEFINE(cuEventDestroy, (CUevent event), destroy(event))
SIM_DEFINE(cuEventDestroy_v2, (CUevent event), destroy(event))
SIM_TWINS(cuEventRecord, cuEventRecord_ptsz, (CUevent event, CUstream stream),
          record(in, event, stream))
SIM_TWINS(cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz,
          (CUevent event, CUstream stream, unsigned int), record(in, event, stream))
SIM_DEFINE(cuEventQuery, (CUevent event), query(in, event))
SIM_DEFINE(cuEventSynchronize, (CUevent event), synchronize(in, event))
SIM_DEFINE(cuEventElapsedTime, (float* milliseconds, CUevent start, CUevent end),
           elapsed(in, milliseconds, start, end))
SIM_DEFINE(cuEventElapsedTime_v2, (float* milliseconds, CUevent start, CUevent end),
           elapsed(in, milliseconds, start, end))

}  // namespace cupool::sim
