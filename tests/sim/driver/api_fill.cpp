// SPDX-License-Identifier: Apache-2.0
// Exported: the memset family.
#include "driver/copy.h"

namespace cupool::sim {

namespace {

CUresult set(Entry& in, CUstream handle, Towards towards, CUdeviceptr to, size_t pitch,
             unsigned value, size_t value_bytes, size_t width, size_t rows) {
  Stream* stream = nullptr;
  const CUresult result = in.stream(handle, &stream);
  if (result == CUDA_SUCCESS && towards == Towards::host_waits && stream->capture != nullptr) {
    return world().captures.refuse_on(*stream);
  }
  if (result != CUDA_SUCCESS) return result;
  return fill(in, *stream, towards, to, pitch, value, value_bytes, width, rows);
}

}  // namespace

#define SIM_FILL(suffix, type, bytes)                                                         \
  SIM_TWINS(cuMemsetD##suffix##_v2, cuMemsetD##suffix##_v2_ptds,                              \
            (CUdeviceptr to, type value, size_t count),                                       \
            set(in, nullptr, Towards::host_waits, to, 0, value, bytes, count, 1))             \
  SIM_TWINS(cuMemsetD##suffix##Async, cuMemsetD##suffix##Async_ptsz,                          \
            (CUdeviceptr to, type value, size_t count, CUstream stream),                      \
            set(in, stream, Towards::host_goes_on, to, 0, value, bytes, count, 1))            \
  SIM_TWINS(cuMemsetD2D##suffix##_v2, cuMemsetD2D##suffix##_v2_ptds,                          \
            (CUdeviceptr to, size_t pitch, type value, size_t width, size_t rows),            \
            set(in, nullptr, Towards::host_waits, to, pitch, value, bytes, width, rows))      \
  SIM_TWINS(                                                                                  \
      cuMemsetD2D##suffix##Async, cuMemsetD2D##suffix##Async_ptsz,                            \
      (CUdeviceptr to, size_t pitch, type value, size_t width, size_t rows, CUstream stream), \
      set(in, stream, Towards::host_goes_on, to, pitch, value, bytes, width, rows))

SIM_FILL(8, unsigned char, 1)
SIM_FILL(16, unsigned short, 2)
SIM_FILL(32, unsigned int, 4)

}  // namespace cupool::sim
