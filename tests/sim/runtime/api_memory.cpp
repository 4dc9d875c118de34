// SPDX-License-Identifier: Apache-2.0
// Exported: allocation of device, managed and host memory.
#include <algorithm>

#include "runtime/runtime.h"

namespace cupool::sim::runtime {

namespace {

// cudaMalloc(0) succeeds and gives null, where the driver refuses (measured).
cudaError_t allocate(void** p, size_t bytes) {
  const cudaError_t state = ready();
  if (state != cudaSuccess) return state;
  if (p == nullptr) return cudaErrorInvalidValue;
  if (bytes == 0) return *p = nullptr, cudaSuccess;
  return translate(driver().cuMemAlloc_v2(out_pointer(p), bytes));
}

cudaError_t release(void* p) {
  const cudaError_t state = ready();
  if (state != cudaSuccess || p == nullptr) return state;
  return translate(driver().cuMemFree_v2(device_pointer(p)));
}

cudaError_t allocate_pitch(void** p, size_t* pitch, size_t width, size_t height) {
  const cudaError_t state = ready();
  if (state != cudaSuccess) return state;
  if (p == nullptr || pitch == nullptr) return cudaErrorInvalidValue;
  if (width == 0 || height == 0) return *p = nullptr, *pitch = 0, cudaSuccess;
  return translate(driver().cuMemAllocPitch_v2(out_pointer(p), pitch, width, height, 4));
}

cudaError_t allocate_3d(cudaPitchedPtr* p, cudaExtent extent) {
  if (p == nullptr) return cudaErrorInvalidValue;
  void* memory = nullptr;
  size_t pitch = 0;
  const cudaError_t error =
      allocate_pitch(&memory, &pitch, extent.width, extent.height * extent.depth);
  if (error == cudaSuccess) *p = {memory, pitch, extent.width, extent.height};
  return error;
}

cudaError_t allocate_managed(void** p, size_t bytes, unsigned flags) {
  const cudaError_t state = ready();
  if (state != cudaSuccess) return state;
  if (p == nullptr || bytes == 0) return cudaErrorInvalidValue;
  return translate(driver().cuMemAllocManaged(out_pointer(p), bytes, flags));
}

cudaError_t allocate_host(void** p, size_t bytes, unsigned flags) {
  const cudaError_t state = ready();
  if (state != cudaSuccess) return state;
  if (p == nullptr) return cudaErrorInvalidValue;
  if (bytes == 0) return *p = nullptr, cudaSuccess;
  return translate(driver().cuMemHostAlloc(p, bytes, flags));
}

cudaError_t release_host(void* p) {
  const cudaError_t state = ready();
  if (state != cudaSuccess || p == nullptr) return state;
  return translate(driver().cuMemFreeHost(p));
}

cudaError_t attributes(cudaPointerAttributes* out, const void* p) {
  const cudaError_t state = ready();
  if (state != cudaSuccess) return state;
  if (out == nullptr) return cudaErrorInvalidValue;
  unsigned type = 0;
  unsigned managed = 0;
  int device = 0;
  CUdeviceptr on_device = 0;
  void* on_host = nullptr;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                 CU_POINTER_ATTRIBUTE_HOST_POINTER};
  void* data[] = {&type, &managed, &device, &on_device, &on_host};
  const CUresult result = driver().cuPointerGetAttributes(5, which, data, device_pointer(p));
  if (result != CUDA_SUCCESS) return translate(result);
  out->type = managed != 0                   ? cudaMemoryTypeManaged
              : type == CU_MEMORYTYPE_HOST   ? cudaMemoryTypeHost
              : type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
                                             : cudaMemoryTypeUnregistered;
  out->device = out->type == cudaMemoryTypeUnregistered ? -2 : device;
  out->devicePointer = reinterpret_cast<void*>(on_device);
  out->hostPointer = out->type == cudaMemoryTypeUnregistered ? const_cast<void*>(p) : on_host;
  return cudaSuccess;
}

}  // namespace

RT_DEFINE(cudaMalloc, (void** p, size_t bytes), allocate(p, bytes))
RT_DEFINE(cudaFree, (void* p), release(p))
RT_DEFINE(cudaMallocPitch, (void** p, size_t* pitch, size_t width, size_t height),
          allocate_pitch(p, pitch, width, height))
RT_DEFINE(cudaMalloc3D, (cudaPitchedPtr * p, cudaExtent extent), allocate_3d(p, extent))
RT_DEFINE(cudaMallocManaged, (void** p, size_t bytes, unsigned int flags),
          allocate_managed(p, bytes, flags))
RT_DEFINE(cudaMallocHost, (void** p, size_t bytes), allocate_host(p, bytes, 0))
RT_DEFINE(cudaHostAlloc, (void** p, size_t bytes, unsigned int flags),
          allocate_host(p, bytes, flags))
RT_DEFINE(cudaFreeHost, (void* p), release_host(p))
RT_DEFINE(cudaHostRegister, (void* p, size_t bytes, unsigned int flags),
          call(driver().cuMemHostRegister_v2, p, bytes, flags))
RT_DEFINE(cudaHostUnregister, (void* p), call(driver().cuMemHostUnregister, p))
RT_DEFINE(cudaHostGetDevicePointer, (void** out, void* p, unsigned int flags),
          call(driver().cuMemHostGetDevicePointer_v2, out_pointer(out), p, flags))
RT_DEFINE(cudaHostGetFlags, (unsigned int* flags, void* p),
          call(driver().cuMemHostGetFlags, flags, p))
RT_DEFINE(cudaMemGetInfo, (size_t * free_bytes, size_t* total),
          call(driver().cuMemGetInfo_v2, free_bytes, total))
RT_DEFINE(cudaPointerGetAttributes, (cudaPointerAttributes * out, const void* p),
          attributes(out, p))
RT_DEFINE(cudaIpcGetMemHandle, (cudaIpcMemHandle_t * handle, void* p),
          call(driver().cuIpcGetMemHandle, reinterpret_cast<CUipcMemHandle*>(handle),
               device_pointer(p)))
RT_DEFINE(cudaIpcOpenMemHandle, (void** p, cudaIpcMemHandle_t handle, unsigned int flags),
          call(driver().cuIpcOpenMemHandle_v2, out_pointer(p),
               *reinterpret_cast<CUipcMemHandle*>(&handle), flags))
RT_DEFINE(cudaIpcCloseMemHandle, (void* p), call(driver().cuIpcCloseMemHandle, device_pointer(p)))

}  // namespace cupool::sim::runtime
