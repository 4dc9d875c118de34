// SPDX-License-Identifier: Apache-2.0
// Stands for a library that registers its memory with other hardware: built once with the shared
// runtime and once with the static one (CUPOOL_BYPASS_LIBS).
#include <cuda_runtime_api.h>

extern "C" {

__attribute__((visibility("default"))) int net_malloc(void** p, size_t bytes) {
  return cudaMalloc(p, bytes);
}

__attribute__((visibility("default"))) int net_malloc_pitch(void** p, size_t* pitch, size_t width,
                                                            size_t height) {
  return cudaMallocPitch(p, pitch, width, height);
}

__attribute__((visibility("default"))) int net_malloc_3d(void** p, size_t width, size_t height) {
  cudaPitchedPtr pitched{};
  const int code = cudaMalloc3D(&pitched, cudaExtent{width, height, 2});
  *p = pitched.ptr;
  return code;
}

__attribute__((visibility("default"))) int net_malloc_host(void** p, size_t bytes) {
  return cudaMallocHost(p, bytes);
}

__attribute__((visibility("default"))) int net_free_host(void* p) {
  return cudaFreeHost(p);
}

__attribute__((visibility("default"))) int net_zero_copy(void** host, void** device, size_t bytes) {
  const int code = cudaHostAlloc(host, bytes, cudaHostAllocMapped);
  return code != 0 ? code : cudaHostGetDevicePointer(device, *host, 0);
}

__attribute__((visibility("default"))) int net_free(void* p) {
  return cudaFree(p);
}
}
