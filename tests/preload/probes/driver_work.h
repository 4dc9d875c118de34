// SPDX-License-Identifier: Apache-2.0
// The driver functions that the driver-interface probes use, as a table that each route fills in
// its own way (linked, dlsym, cuGetProcAddress), and the work they do with it. Same work, same
// counts, whatever the route: a difference is the route's.
#pragma once

#include <cuda.h>

#include <cstdint>

// member (base name), exact name in libcuda.so.1
#define DRIVER_FUNCTIONS(X)                                    \
  X(cuInit, "cuInit")                                          \
  X(cuDeviceGet, "cuDeviceGet")                                \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")      \
  X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2") \
  X(cuCtxSetCurrent, "cuCtxSetCurrent")                        \
  X(cuCtxSynchronize, "cuCtxSynchronize")                      \
  X(cuMemAlloc, "cuMemAlloc_v2")                               \
  X(cuMemAllocPitch, "cuMemAllocPitch_v2")                     \
  X(cuMemFree, "cuMemFree_v2")                                 \
  X(cuMemGetInfo, "cuMemGetInfo_v2")                           \
  X(cuMemGetAddressRange, "cuMemGetAddressRange_v2")           \
  X(cuMemcpyDtoH, "cuMemcpyDtoH_v2")                           \
  X(cuMemsetD8, "cuMemsetD8_v2")                               \
  X(cuModuleLoadData, "cuModuleLoadData")                      \
  X(cuModuleGetFunction, "cuModuleGetFunction")                \
  X(cuModuleUnload, "cuModuleUnload")                          \
  X(cuLaunchKernel, "cuLaunchKernel")                          \
  X(cuStreamCreate, "cuStreamCreate")                          \
  X(cuStreamDestroy, "cuStreamDestroy_v2")                     \
  X(cuStreamSynchronize, "cuStreamSynchronize")

struct DriverFunctions {
#define DRIVER_MEMBER(name, exact) decltype(&name) name##_fn = nullptr;
  DRIVER_FUNCTIONS(DRIVER_MEMBER)
#undef DRIVER_MEMBER
};

struct DriverCounts {
  uint64_t mallocs = 0;
  uint64_t frees = 0;
  uint64_t wrong_words = 0;
};

// Makes device 0's primary context current, runs `iterations` of allocate, stamp by kernel, check
// by kernel, free while the next stamp is pending; leaves the context as it found it.
DriverCounts run_driver_work(const DriverFunctions& driver, int iterations);

// Prints the lines that all driver probes print, returns the exit code.
int report_driver_work(const DriverCounts& counts);
