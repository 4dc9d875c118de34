// SPDX-License-Identifier: Apache-2.0
// A program with libcudart on a machine without a driver or without a device (contract 13): prints
// the errors that it gets and goes on on the host, as careful programs do.
#include <cuda_runtime_api.h>

#include "probe.h"

int main() {
  int count = -1;
  std::printf("count: %d\n", static_cast<int>(cudaGetDeviceCount(&count)));
  std::printf("devices: %d\n", count);
  void* p = nullptr;
  std::printf("malloc: %d\n", static_cast<int>(cudaMalloc(&p, 100)));
  std::printf("pointer: %s\n", p == nullptr ? "null" : "set");
  std::printf("free null: %d\n", static_cast<int>(cudaFree(nullptr)));
  std::printf("synchronize: %d\n", static_cast<int>(cudaDeviceSynchronize()));
  std::printf("last error: %d\n", static_cast<int>(cudaGetLastError()));
  size_t pitch = 0;
  std::printf("pitch: %d\n", static_cast<int>(cudaMallocPitch(&p, &pitch, 100, 100)));
  return 0;
}
