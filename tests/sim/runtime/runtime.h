// SPDX-License-Identifier: Apache-2.0
// The runtime's own state, and how its exported functions are written: errors are remembered for
// cudaGetLastError, and the primary context comes to life when it is first needed.
#pragma once

#include "runtime/driver.h"

#define RT_EXPORT extern "C" __attribute__((visibility("default"))) cudaError_t CUDARTAPI

/// An exported function: its result is remembered if it is an error.
#define RT_DEFINE(name, params, call)              \
  RT_EXPORT name params {                          \
    return ::cupool::sim::runtime::remember(call); \
  }

/// A function and its twin for the per-thread default stream; `pt` tells them apart in `call`.
#define RT_TWINS(name, twin, params, call)         \
  RT_EXPORT name params {                          \
    constexpr bool pt = false;                     \
    return ::cupool::sim::runtime::remember(call); \
  }                                                \
  RT_EXPORT twin params {                          \
    constexpr bool pt = true;                      \
    return ::cupool::sim::runtime::remember(call); \
  }

/// The driver's function for this stream convention.
#define RT_PICK(legacy, twin) (pt ? driver().twin : driver().legacy)

namespace cupool::sim::runtime {

cudaError_t remember(cudaError_t error);
cudaError_t last_error(bool forget);

/// The numbers are the same since CUDA 10.1, with these few names apart.
inline cudaError_t translate(CUresult result) {
  return static_cast<cudaError_t>(result);
}

inline CUdeviceptr device_pointer(const void* p) {
  return reinterpret_cast<CUdeviceptr>(const_cast<void*>(p));
}
inline CUdeviceptr* out_pointer(void** p) {
  return reinterpret_cast<CUdeviceptr*>(p);
}

/// Makes sure that the driver works and that the thread has a context: the current one, or the
/// primary context of the thread's device.
cudaError_t ready();

/// The driver only.
cudaError_t loaded();

int thread_device();
cudaError_t use_device(int device);
void forget_device(int device);

template <typename Function, typename... Arguments>
cudaError_t call(Function function, Arguments... arguments) {
  const cudaError_t state = ready();
  if (state != cudaSuccess) return state;
  return function == nullptr ? cudaErrorNotSupported : translate(function(arguments...));
}

}  // namespace cupool::sim::runtime
