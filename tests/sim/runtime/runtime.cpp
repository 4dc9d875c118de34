// SPDX-License-Identifier: Apache-2.0
// Lazy initialisation and the last error.
#include "runtime/runtime.h"

#include <atomic>

namespace cupool::sim::runtime {

namespace {

constexpr int kMostDevices = 64;

thread_local cudaError_t error_of_thread = cudaSuccess;
thread_local int device_of_thread = 0;

std::atomic<bool> retained[kMostDevices];
std::atomic<CUcontext> primary[kMostDevices];

cudaError_t retain(int device) {
  if (retained[device].load(std::memory_order_acquire)) return cudaSuccess;
  CUcontext context = nullptr;
  const CUresult result = driver().cuDevicePrimaryCtxRetain(&context, device);
  if (result != CUDA_SUCCESS) return translate(result);
  primary[device].store(context);
  if (retained[device].exchange(true)) driver().cuDevicePrimaryCtxRelease(device);
  return cudaSuccess;
}

}  // namespace

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) error_of_thread = error;
  return error;
}

cudaError_t last_error(bool forget) {
  const cudaError_t error = error_of_thread;
  if (forget) error_of_thread = cudaSuccess;
  return error;
}

cudaError_t loaded() {
  return driver().state;
}

cudaError_t ready() {
  const Driver& d = driver();
  if (d.state != cudaSuccess) return d.state;
  CUcontext current = nullptr;
  const CUresult result = d.cuCtxGetCurrent(&current);
  if (result != CUDA_SUCCESS) return translate(result);
  if (current == nullptr) {
    const cudaError_t retain_error = retain(device_of_thread);
    if (retain_error != cudaSuccess) return retain_error;
    return translate(d.cuCtxSetCurrent(primary[device_of_thread].load()));
  }
  // A primary context that was reset comes back to life; contexts of the driver API are left alone.
  for (int device = 0; device < kMostDevices; ++device) {
    if (primary[device].load() == current && !retained[device].load()) return retain(device);
  }
  return cudaSuccess;
}

int thread_device() {
  CUdevice device = 0;
  CUcontext current = nullptr;
  const Driver& d = driver();
  if (d.state == cudaSuccess && d.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != nullptr &&
      d.cuCtxGetDevice(&device) == CUDA_SUCCESS) {
    return device;
  }
  return device_of_thread;
}

// Since CUDA 12 cudaSetDevice initialises the device's primary context at once.
cudaError_t use_device(int device) {
  const Driver& d = driver();
  if (d.state != cudaSuccess) return d.state;
  int count = 0;
  d.cuDeviceGetCount(&count);
  if (device < 0 || device >= count) return cudaErrorInvalidDevice;
  device_of_thread = device;
  const cudaError_t error = retain(device);
  return error != cudaSuccess ? error : translate(d.cuCtxSetCurrent(primary[device].load()));
}

void forget_device(int device) {
  retained[device].store(false);
}

}  // namespace cupool::sim::runtime
