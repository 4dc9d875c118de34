// SPDX-License-Identifier: Apache-2.0
// A plugin that owns a way to CUDA: built with the static runtime, with the shared one, and linked
// to the driver (LIFE_PLUGIN_DRIVER). Its host loads it in every way that dlopen knows.
#include <dlfcn.h>

#include <cstdint>

#include "life_plugin.h"

#if defined(LIFE_PLUGIN_DRIVER)
#include <cuda.h>
#else
#include <cuda_runtime_api.h>
#endif

namespace {

#if defined(LIFE_PLUGIN_DRIVER)
int prepare() {
  CUdevice device = 0;
  CUcontext context = nullptr;
  int code = cuInit(0);
  if (code == 0) code = cuDeviceGet(&device, 0);
  if (code == 0) code = cuDevicePrimaryCtxRetain(&context, device);
  return code != 0 ? code : cuCtxSetCurrent(context);
}

int allocate(std::size_t bytes, int value, std::uintptr_t* address) {
  CUdeviceptr p = 0;
  int code = prepare();
  if (code == 0) code = cuMemAlloc(&p, bytes);
  if (code == 0) code = cuMemsetD8(p, static_cast<unsigned char>(value), bytes);
  *address = p;
  return code;
}

int release(std::uintptr_t address) {
  return cuMemFree(address);
}

int read(std::uintptr_t address, void* to, std::size_t bytes) {
  return cuMemcpyDtoH(to, address, bytes);
}
#else
int allocate(std::size_t bytes, int value, std::uintptr_t* address) {
  void* p = nullptr;
  int code = cudaMalloc(&p, bytes);
  if (code == 0) code = cudaMemset(p, value, bytes);
  *address = reinterpret_cast<std::uintptr_t>(p);
  return code;
}

int release(std::uintptr_t address) {
  return cudaFree(reinterpret_cast<void*>(address));
}

int read(std::uintptr_t address, void* to, std::size_t bytes) {
  return cudaMemcpy(to, reinterpret_cast<void*>(address), bytes, cudaMemcpyDeviceToHost);
}
#endif

// Asked from this object, so that an error names it.
void* look_up(void* handle, const char* name) {
  return dlsym(handle, name);
}

}  // namespace

extern "C" __attribute__((visibility("default")))
const LifePlugin life_plugin{allocate, release, read, look_up};
