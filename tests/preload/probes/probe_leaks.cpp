// SPDX-License-Identifier: Apache-2.0
// A program that forgets memory at known places (CUPOOL_LEAKS). Arguments: many=N (leaks of 4 KiB
// from one place, beside the few others).
#include <cuda_runtime_api.h>

#include "probe.h"

extern "C" {

__attribute__((noinline, visibility("default"))) void* leak_large() {
  void* address = nullptr;
  MUST(cudaMalloc(&address, size_t{5} << 20));
  return address;
}

__attribute__((noinline, visibility("default"))) void* leak_small() {
  void* address = nullptr;
  MUST(cudaMalloc(&address, 1000));
  return address;
}

__attribute__((noinline, visibility("default"))) void* leak_many() {
  void* address = nullptr;
  MUST(cudaMalloc(&address, 4096));
  return address;
}

}  // extern "C"

int main(int argc, char** argv) {
  const long many = probe::number(argc, argv, "many", 0);
  for (int i = 0; i < 6; ++i) {
    void* address = leak_large();
    if (i % 2 == 0) MUST(cudaFree(address));  // half of them
  }
  leak_small();
  for (int i = 0; i < 100; ++i) MUST(cudaFree(leak_small()));
  for (long i = 0; i < many; ++i) leak_many();
  std::printf("done\n");
  return 0;
}
