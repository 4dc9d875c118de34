// SPDX-License-Identifier: Apache-2.0
// Exported: arrays, as far as they are memory: what they take, and copies to and from them.
#include "driver/array.h"

#include "driver/entry.h"

namespace cupool::sim {

namespace {

size_t element_bytes(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    default:
      return 4;
  }
}

CUresult create(Entry& in, CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR& d) {
  World& w = world();
  Context* context = nullptr;
  CUresult result = in.current(&context);
  if (result == CUDA_SUCCESS && (handle == nullptr || d.Width == 0 || d.NumChannels == 0)) {
    result = CUDA_ERROR_INVALID_VALUE;
  }
  if (result == CUDA_SUCCESS) result = w.captures.refuse_unsafe();
  if (result != CUDA_SUCCESS) return result;
  auto array = std::make_unique<Array>();
  array->descriptor = d;
  array->context = context;
  array->pitch = d.Width * element_bytes(d.Format) * d.NumChannels;
  array->bytes = array->pitch * (d.Height != 0 ? d.Height : 1) * (d.Depth != 0 ? d.Depth : 1);
  bool grew = false;
  array->memory = context->heap.allocate(*context->device, array->bytes, &grew);
  if (array->memory == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = reinterpret_cast<CUarray>(array.get());
  w.arrays.insert(array.release());
  return CUDA_SUCCESS;
}

CUresult create_2d(Entry& in, CUarray* handle, const CUDA_ARRAY_DESCRIPTOR* d) {
  if (d == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR full{};
  full.Width = d->Width;
  full.Height = d->Height;
  full.Format = d->Format;
  full.NumChannels = d->NumChannels;
  return create(in, handle, full);
}

CUresult create_3d(Entry& in, CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR* d) {
  return d == nullptr ? CUDA_ERROR_INVALID_VALUE : create(in, handle, *d);
}

// Waits like cuMemFree (measured with an H200).
CUresult destroy(Entry& in, CUarray handle) {
  World& w = world();
  Context* context = nullptr;
  CUresult result = in.current(&context);
  if (result == CUDA_SUCCESS) result = w.captures.refuse_unsafe();
  if (result != CUDA_SUCCESS) return result;
  Array* const array = known_array(handle);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Context& owner = *array->context;
  result = wait_for(in, owner, tails(owner));
  if (result != CUDA_SUCCESS || w.arrays.erase(array) == 0) return result;
  owner.heap.release(*owner.device, array->memory, array->bytes);
  delete array;
  return CUDA_SUCCESS;
}

CUresult describe_3d(CUDA_ARRAY3D_DESCRIPTOR* d, CUarray handle) {
  const Array* const array = known_array(handle);
  if (d == nullptr || array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *d = array->descriptor;
  return CUDA_SUCCESS;
}

CUresult describe_2d(CUDA_ARRAY_DESCRIPTOR* d, CUarray handle) {
  CUDA_ARRAY3D_DESCRIPTOR full{};
  const CUresult result = describe_3d(&full, handle);
  if (result == CUDA_SUCCESS && d != nullptr) {
    *d = {full.Width, full.Height, full.Format, full.NumChannels};
  }
  return result;
}

}  // namespace

Array* known_array(CUarray handle) {
  auto* const array = reinterpret_cast<Array*>(handle);
  return handle != nullptr && world().arrays.count(array) != 0 ? array : nullptr;
}

SIM_DEFINE(cuArrayCreate_v2, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR* d),
           create_2d(in, array, d))
SIM_DEFINE(cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR* d),
           create_3d(in, array, d))
SIM_DEFINE(cuArrayDestroy, (CUarray array), destroy(in, array))
SIM_DEFINE(cuArrayGetDescriptor_v2, (CUDA_ARRAY_DESCRIPTOR * d, CUarray array),
           describe_2d(d, array))
SIM_DEFINE(cuArray3DGetDescriptor_v2, (CUDA_ARRAY3D_DESCRIPTOR * d, CUarray array),
           describe_3d(d, array))

}  // namespace cupool::sim
