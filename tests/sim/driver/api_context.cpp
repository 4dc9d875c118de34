// SPDX-License-Identifier: Apache-2.0
// Exported: contexts, primary and created; what is current; whole-context waits and events.
#include <algorithm>

#include "driver/entry.h"

namespace cupool::sim {

namespace {

CUresult retain(Entry& in, CUcontext* handle, CUdevice ordinal) {
  Device* device = nullptr;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = in.device(ordinal, &device);
  if (result == CUDA_SUCCESS) result = retain_primary(*device);
  if (result == CUDA_SUCCESS) *handle = device->primary->handle();
  return result;
}

CUresult release(Entry& in, CUdevice ordinal) {
  Device* device = nullptr;
  const CUresult result = in.device(ordinal, &device);
  return result == CUDA_SUCCESS ? release_primary(in, *device) : result;
}

// The context's handle and its references stay; it comes back to life when it is retained next (all
// measured).
CUresult reset(Entry& in, CUdevice ordinal) {
  Device* device = nullptr;
  const CUresult result = in.device(ordinal, &device);
  if (result != CUDA_SUCCESS) return result;
  if (device->primary->alive) empty(in.lock(), *device->primary);
  return CUDA_SUCCESS;
}

CUresult state(Entry& in, CUdevice ordinal, unsigned* flags, int* active) {
  Device* device = nullptr;
  const CUresult result = in.device(ordinal, &device);
  if (result != CUDA_SUCCESS) return result;
  if (flags != nullptr) *flags = device->primary_flags;
  if (active != nullptr) *active = device->primary->alive ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult set_flags(Entry& in, CUdevice ordinal, unsigned flags) {
  Device* device = nullptr;
  const CUresult result = in.device(ordinal, &device);
  if (result != CUDA_SUCCESS) return result;
  device->primary_flags = flags;
  if (device->primary->alive) device->primary->flags = flags;
  return CUDA_SUCCESS;
}

Context& room_for_context() {
  constexpr size_t kKept = 8;
  World& w = world();
  if (w.destroyed_contexts.size() <= kKept) {
    w.contexts.push_back(std::make_unique<Context>());
    return *w.contexts.back();
  }
  Context& context = *w.destroyed_contexts.front();
  w.destroyed_contexts.pop_front();
  context = Context{};
  return context;
}

CUresult create(Entry& in, CUcontext* handle, unsigned flags, CUdevice ordinal) {
  Device* device = nullptr;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = in.device(ordinal, &device);
  if (result != CUDA_SUCCESS) return result;
  World& w = world();
  Context& context = room_for_context();
  context.device = device;
  context.flags = flags;
  context.id = ++w.last_id;
  revive(context);
  push_context({&context, nullptr});
  *handle = context.handle();
  return CUDA_SUCCESS;
}

CUresult destroy(Entry& in, CUcontext handle) {
  Context* const context = world().known_context(handle);
  if (context == nullptr || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  empty(in.lock(), *context);
  world().destroyed_contexts.push_back(context);
  NamedContext popped;
  if (current_context().context == context) pop_context(&popped);
  return CUDA_SUCCESS;
}

CUresult attach(CUcontext* handle, unsigned flags) {
  Context* const context = current_context().context;
  if (handle == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (context == nullptr || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  ++context->uses;
  *handle = context->handle();
  return CUDA_SUCCESS;
}

CUresult detach(Entry& in, CUcontext handle) {
  Context* const context = world().known_context(handle);
  if (context == nullptr || context != current_context().context) return CUDA_ERROR_INVALID_CONTEXT;
  if (context->uses > 1) {
    --context->uses;
    return CUDA_SUCCESS;
  }
  return destroy(in, handle);
}

CUresult push(CUcontext handle) {
  const NamedContext context = world().named_context(handle);
  if (context.context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return push_context(context) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult pop(CUcontext* handle) {
  NamedContext context;
  if (!pop_context(&context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (handle != nullptr) *handle = context.handle();
  return CUDA_SUCCESS;
}

CUresult set_current(CUcontext handle) {
  const NamedContext context = handle == nullptr ? NamedContext{} : world().named_context(handle);
  if (handle != nullptr && context.context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  set_current_context(context);
  return CUDA_SUCCESS;
}

CUresult get_current(CUcontext* handle) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *handle = current_context().handle();
  return CUDA_SUCCESS;
}

/// The context that a call names, or the current one for a null handle.
CUresult named(CUcontext handle, NamedContext* context) {
  *context = handle == nullptr ? current_context() : world().named_context(handle);
  const CUresult result = context->usable();
  const bool unusable =
      result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return unusable ? result : CUDA_SUCCESS;  // an error that stays is the caller's
}

CUresult get_device(CUdevice* ordinal, CUcontext handle) {
  if (ordinal == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Context* const context =
      handle == nullptr ? current_context().context : world().known_context(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *ordinal = context->device->ordinal;
  return CUDA_SUCCESS;
}

CUresult get_id(CUcontext handle, unsigned long long* id) {
  NamedContext context;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = named(handle, &context);
  if (result == CUDA_SUCCESS)
    *id = context.green != nullptr ? context.green->id : context.context->id;
  return result;
}

CUresult get_flags(unsigned* flags) {
  NamedContext context;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = named(nullptr, &context);
  if (result == CUDA_SUCCESS) *flags = context.context->flags;
  return result;
}

CUresult get_api_version(CUcontext handle, unsigned* version) {
  NamedContext context;
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = named(handle, &context);
  if (result == CUDA_SUCCESS) *version = context.context->api_version;
  return result;
}

CUresult set_limit(Entry& in, CUlimit limit, size_t value) {
  Context* context = nullptr;
  const CUresult result = in.current(&context);
  if (result == CUDA_SUCCESS) context->limits[limit] = value;
  return result;
}

CUresult get_limit(Entry& in, size_t* value, CUlimit limit) {
  Context* context = nullptr;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = in.current(&context);
  if (result != CUDA_SUCCESS) return result;
  const auto it = context->limits.find(limit);
  *value = it != context->limits.end() ? it->second : (limit == CU_LIMIT_STACK_SIZE ? 1024 : 0);
  return CUDA_SUCCESS;
}

CUresult priority_range(Entry& in, int* least, int* greatest) {
  Context* context = nullptr;
  const CUresult result = in.current(&context);
  if (result != CUDA_SUCCESS) return result;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

// Refused and invalidating while a stream of the context captures
// (docs/measurements/2026-11-22-h200-driver-facts.txt).
CUresult synchronize(Entry& in, CUcontext handle) {
  NamedContext named_one;
  CUresult result = named(handle, &named_one);
  if (result != CUDA_SUCCESS) return result;
  Context& context = *named_one.context;
  result = context.sticky;
  if (result == CUDA_SUCCESS) result = world().captures.refuse_in(context);
  if (result != CUDA_SUCCESS) return result;
  result =
      wait_for(in, context, named_one.green != nullptr ? tails(*named_one.green) : tails(context));
  if (result == CUDA_SUCCESS) world().after_host_sync(*context.device);
  in.costs(450);
  return result;
}

CUresult record_event(Entry& in, CUcontext handle, CUevent event) {
  NamedContext context;
  const CUresult result = named(handle, &context);
  return result == CUDA_SUCCESS ? record_context_event(in, context, event) : result;
}

CUresult wait_event(Entry& in, CUcontext handle, CUevent event_handle) {
  NamedContext context;
  Event* event = nullptr;
  CUresult result = named(handle, &context);
  if (result != CUDA_SUCCESS) return result;
  if (context.green != nullptr) return CUDA_ERROR_NOT_SUPPORTED;  // not modelled
  result = context.context->sticky;
  if (result == CUDA_SUCCESS) result = in.event(event_handle, &event);
  if (result == CUDA_SUCCESS) result = world().captures.refuse_in(*context.context);
  if (result != CUDA_SUCCESS) return result;
  if (event->record != nullptr) context.context->barriers.push_back(event->record);
  in.costs(170);
  return CUDA_SUCCESS;
}

CUresult enable_peer(Entry& in, CUcontext peer_handle, unsigned flags) {
  Context* context = nullptr;
  Context* const peer = world().known_context(peer_handle);
  const CUresult result = in.current(&context);
  if (result != CUDA_SUCCESS) return result;
  if (peer == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (peer->device == context->device) return CUDA_ERROR_INVALID_DEVICE;
  if (!world().settings.peers) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  return context->peers.insert(peer).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

CUresult disable_peer(Entry& in, CUcontext peer_handle) {
  Context* context = nullptr;
  const CUresult result = in.current(&context);
  if (result != CUDA_SUCCESS) return result;
  const size_t gone = context->peers.erase(world().known_context(peer_handle));
  return gone != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

}  // namespace

CUresult retain_primary(Device& device) {
  Context& context = *device.primary;
  if (!context.alive) {
    context.flags = device.primary_flags;
    revive(context);
  }
  ++device.primary_references;
  return CUDA_SUCCESS;
}

CUresult release_primary(Entry& in, Device& device) {
  if (device.primary_references == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--device.primary_references == 0 && device.primary->alive) {
    empty(in.lock(), *device.primary);
  }
  return CUDA_SUCCESS;
}

// Covers all work of the context (CUDA Driver API, cuCtxRecordEvent), destroyed streams included,
// orders nothing (measured), and is refused during a capture, relaxed mode too
// (docs/measurements/2026-11-22-h200-driver-facts.txt). For a primary context its green ones are
// covered, for a green one only its own work (cuda.h, and measured in the first case).
CUresult record_context_event(Entry& in, const NamedContext& named, CUevent event_handle) {
  Context& context = *named.context;
  Event* event = nullptr;
  CUresult result = context.sticky;
  if (result == CUDA_SUCCESS) result = in.event(event_handle, &event);
  if (result != CUDA_SUCCESS) return result;
  if (event->context != &context) return CUDA_ERROR_INVALID_HANDLE;
  result = world().captures.refuse_in(context);
  if (result != CUDA_SUCCESS) return result;
  OpSpec spec;
  spec.name = "context event";
  event->record = named.green != nullptr ? submit_after_everything(*named.green, spec)
                                         : submit_after_everything(context, spec);
  event->of_context = true;
  event->capture_id = 0;
  event->polls = 0;
  in.costs(200);
  return CUDA_SUCCESS;
}

SIM_DEFINE(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device),
           retain(in, context, device))
SIM_DEFINE(cuDevicePrimaryCtxRelease, (CUdevice device), release(in, device))
SIM_DEFINE(cuDevicePrimaryCtxRelease_v2, (CUdevice device), release(in, device))
SIM_DEFINE(cuDevicePrimaryCtxReset, (CUdevice device), reset(in, device))
SIM_DEFINE(cuDevicePrimaryCtxReset_v2, (CUdevice device), reset(in, device))
SIM_DEFINE(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int* flags, int* active),
           state(in, device, flags, active))
SIM_DEFINE(cuDevicePrimaryCtxSetFlags, (CUdevice device, unsigned int flags),
           set_flags(in, device, flags))
SIM_DEFINE(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned int flags),
           set_flags(in, device, flags))
SIM_DEFINE(cuCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device),
           create(in, context, flags, device))
SIM_DEFINE(cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device),
           create(in, context, flags, device))
SIM_DEFINE(cuCtxCreate_v3,
           (CUcontext * context, CUexecAffinityParam*, int, unsigned int flags, CUdevice device),
           create(in, context, flags, device))
SIM_DEFINE(cuCtxCreate_v4,
           (CUcontext * context, CUctxCreateParams*, unsigned int flags, CUdevice device),
           create(in, context, flags, device))
SIM_DEFINE(cuGLCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device),
           create(in, context, flags, device))
SIM_DEFINE(cuGLCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device),
           create(in, context, flags, device))
SIM_DEFINE(cuCtxAttach, (CUcontext * context, unsigned int flags), attach(context, flags))
SIM_DEFINE(cuCtxDetach, (CUcontext context), detach(in, context))
SIM_DEFINE(cuCtxDestroy, (CUcontext context), destroy(in, context))
SIM_DEFINE(cuCtxDestroy_v2, (CUcontext context), destroy(in, context))
SIM_DEFINE(cuCtxPushCurrent, (CUcontext context), push(context))
SIM_DEFINE(cuCtxPushCurrent_v2, (CUcontext context), push(context))
SIM_DEFINE(cuCtxPopCurrent, (CUcontext * context), pop(context))
SIM_DEFINE(cuCtxPopCurrent_v2, (CUcontext * context), pop(context))
SIM_DEFINE(cuCtxSetCurrent, (CUcontext context), set_current(context))
SIM_DEFINE(cuCtxGetCurrent, (CUcontext * context), get_current(context))
SIM_DEFINE(cuCtxGetDevice, (CUdevice * device), get_device(device, nullptr))
SIM_DEFINE(cuCtxGetDevice_v2, (CUdevice * device, CUcontext context), get_device(device, context))
SIM_DEFINE(cuCtxGetId, (CUcontext context, unsigned long long* id), get_id(context, id))
SIM_DEFINE(cuCtxGetFlags, (unsigned int* flags), get_flags(flags))
SIM_DEFINE(cuCtxGetApiVersion, (CUcontext context, unsigned int* version),
           get_api_version(context, version))
SIM_DEFINE(cuCtxSetLimit, (CUlimit limit, size_t value), set_limit(in, limit, value))
SIM_DEFINE(cuCtxGetLimit, (size_t * value, CUlimit limit), get_limit(in, value, limit))
SIM_DEFINE(cuCtxGetStreamPriorityRange, (int* least, int* greatest),
           priority_range(in, least, greatest))
SIM_DEFINE(cuCtxSynchronize, (), synchronize(in, nullptr))
SIM_DEFINE(cuCtxSynchronize_v2, (CUcontext context), synchronize(in, context))
SIM_DEFINE(cuCtxRecordEvent, (CUcontext context, CUevent event), record_event(in, context, event))
SIM_DEFINE(cuCtxWaitEvent, (CUcontext context, CUevent event), wait_event(in, context, event))
SIM_DEFINE(cuCtxEnablePeerAccess, (CUcontext peer, unsigned int flags),
           enable_peer(in, peer, flags))
SIM_DEFINE(cuCtxDisablePeerAccess, (CUcontext peer), disable_peer(in, peer))

}  // namespace cupool::sim
