// SPDX-License-Identifier: Apache-2.0
// Exported: a later version of a function and a new one, of no driver that there is. They copy, if
// what they are given is as the caller said it.
#include "driver/entry.h"
#include "driver/newer.h"

SIM_EXPORT cuMemcpyAsync_v9(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream,
                            unsigned long long five, double six, unsigned long long seven,
                            unsigned long long eight) {
  if (five != 5 || six != 6.5 || seven != 7 || eight != 8) return CUDA_ERROR_INVALID_VALUE;
  return cuMemcpyAsync(to, from, bytes, stream);
}

SIM_EXPORT cuMemcpyTomorrowAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return cuMemcpyAsync(to, from, bytes, stream);
}
