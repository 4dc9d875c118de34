// SPDX-License-Identifier: Apache-2.0
// Exported: green contexts, made of all multiprocessors of a device or some. Which ones run a
// kernel changes nothing here.
#include "driver/entry.h"

namespace cupool::sim {

namespace {

constexpr unsigned kMultiprocessors = 132;  // of an H100 or H200
constexpr unsigned kLeast = 8;              // of a part, and its unit: compute capability 9.0

// A description stands for a number of multiprocessors: nothing releases one.
CUdevResourceDesc description_of(unsigned sms) {
  return reinterpret_cast<CUdevResourceDesc>(static_cast<uintptr_t>(sms));
}
unsigned sms_of(CUdevResourceDesc description) {
  return static_cast<unsigned>(reinterpret_cast<uintptr_t>(description));
}

CUdevResource part(unsigned sms) {
  CUdevResource resource{};
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  resource.sm.smCount = sms;
  return resource;
}

CUresult get_resource(Entry& in, CUdevice ordinal, CUdevResource* resource,
                      CUdevResourceType type) {
  Device* device = nullptr;
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = in.device(ordinal, &device);
  if (result != CUDA_SUCCESS) return result;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  *resource = part(kMultiprocessors);
  return CUDA_SUCCESS;
}

CUresult split(CUdevResource* parts, unsigned* count, const CUdevResource* input,
               CUdevResource* rest, unsigned least) {
  if (count == nullptr || input == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (input->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  if (least > input->sm.smCount) return CUDA_ERROR_INVALID_VALUE;
  const unsigned each = std::max((least + kLeast - 1) / kLeast, 1u) * kLeast;
  const unsigned fit = input->sm.smCount / each;
  *count = parts == nullptr ? fit : std::min(*count, fit);
  for (unsigned i = 0; parts != nullptr && i < *count; ++i) parts[i] = part(each);
  if (rest != nullptr) *rest = part(input->sm.smCount - *count * each);
  return CUDA_SUCCESS;
}

CUresult describe(CUdevResourceDesc* description, const CUdevResource* resources, unsigned count) {
  if (description == nullptr || resources == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  unsigned sms = 0;
  for (unsigned i = 0; i < count; ++i) {
    if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    sms += resources[i].sm.smCount;
  }
  if (sms == 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  *description = description_of(sms);
  return CUDA_SUCCESS;
}

CUresult create(Entry& in, CUgreenCtx* handle, CUdevResourceDesc description, CUdevice ordinal,
                unsigned flags) {
  Device* device = nullptr;
  if (handle == nullptr || description == nullptr || flags != CU_GREEN_CTX_DEFAULT_STREAM) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUresult result = in.device(ordinal, &device);
  if (result == CUDA_SUCCESS) result = retain_primary(*device);
  if (result == CUDA_SUCCESS)
    *handle = create_green(*device->primary, sms_of(description)).handle();
  return result;
}

CUresult find(CUgreenCtx handle, GreenContext** green) {
  for (auto& each : world().greens) {
    if (each->handle() != handle) continue;
    *green = each.get();
    return NamedContext{each->primary, each.get()}.usable();
  }
  return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult destroy(Entry& in, CUgreenCtx handle) {
  GreenContext* green = nullptr;
  const CUresult result = find(handle, &green);
  if (green == nullptr || !green->holds_primary) return result;
  green->holds_primary = false;
  const CUresult alive = green->alive ? CUDA_SUCCESS : result;
  end_green(*green);
  release_primary(in, *green->primary->device);
  return alive;
}

CUresult convert(CUcontext* context, CUgreenCtx handle) {
  GreenContext* green = nullptr;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = find(handle, &green);
  if (result == CUDA_SUCCESS) *context = green->context_handle();
  return result;
}

CUresult get_id(CUgreenCtx handle, unsigned long long* id) {
  GreenContext* green = nullptr;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = find(handle, &green);
  if (result == CUDA_SUCCESS) *id = green->id;
  return result;
}

CUresult record(Entry& in, CUgreenCtx handle, CUevent event) {
  GreenContext* green = nullptr;
  const CUresult result = find(handle, &green);
  return result == CUDA_SUCCESS ? record_context_event(in, {green->primary, green}, event) : result;
}

CUresult create_stream_of(CUstream* stream, CUgreenCtx handle, unsigned flags, int priority) {
  GreenContext* green = nullptr;
  if (stream == nullptr || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = find(handle, &green);
  if (result != CUDA_SUCCESS) return result;
  Stream& created = create_stream(*green->primary, flags, priority);
  created.green = green;
  *stream = reinterpret_cast<CUstream>(&created);
  return CUDA_SUCCESS;
}

CUresult green_of_stream(Entry& in, CUstream handle, CUgreenCtx* green) {
  Stream* stream = nullptr;
  if (green == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = in.stream(handle, &stream);
  if (result != CUDA_SUCCESS) return result;
  *green = stream->green == nullptr ? nullptr : stream->green->handle();
  return CUDA_SUCCESS;
}

}  // namespace

SIM_DEFINE(cuDeviceGetDevResource,
           (CUdevice device, CUdevResource* resource, CUdevResourceType type),
           get_resource(in, device, resource, type))
SIM_DEFINE(cuDevSmResourceSplitByCount,
           (CUdevResource * parts, unsigned int* count, const CUdevResource* input,
            CUdevResource* rest, unsigned int, unsigned int least),
           split(parts, count, input, rest, least))
SIM_DEFINE(cuDevResourceGenerateDesc,
           (CUdevResourceDesc * description, CUdevResource* resources, unsigned int count),
           describe(description, resources, count))
SIM_DEFINE(cuGreenCtxCreate,
           (CUgreenCtx * green, CUdevResourceDesc description, CUdevice device, unsigned int flags),
           create(in, green, description, device, flags))
SIM_DEFINE(cuGreenCtxDestroy, (CUgreenCtx green), destroy(in, green))
SIM_DEFINE(cuCtxFromGreenCtx, (CUcontext * context, CUgreenCtx green), convert(context, green))
SIM_DEFINE(cuGreenCtxGetId, (CUgreenCtx green, unsigned long long* id), get_id(green, id))
SIM_DEFINE(cuGreenCtxRecordEvent, (CUgreenCtx green, CUevent event), record(in, green, event))
SIM_DEFINE(cuGreenCtxStreamCreate,
           (CUstream * stream, CUgreenCtx green, unsigned int flags, int priority),
           create_stream_of(stream, green, flags, priority))
SIM_DEFINE(cuStreamGetGreenCtx, (CUstream stream, CUgreenCtx* green),
           green_of_stream(in, stream, green))

}  // namespace cupool::sim
