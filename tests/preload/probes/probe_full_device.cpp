// SPDX-License-Identifier: Apache-2.0
// A device that is filled to the last block while a small one is live (contract 4): what then takes
// a little memory of the driver finds the rest of the chunk that the small block has opened. Here
// that is a library whose allocations pass through.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <string>

#include "probe.h"

int main(int, char** argv) {
  const std::string folder = std::string(argv[0]).substr(0, std::string(argv[0]).rfind('/') + 1);
  void* const library = dlopen((folder + "libnccl_shared.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  CHECK(library != nullptr);
  const auto allocate = reinterpret_cast<int (*)(void**, size_t)>(dlsym(library, "net_malloc"));
  CHECK(allocate != nullptr);
  void* small = nullptr;
  void* big = nullptr;
  void* theirs = nullptr;
  size_t available = 0;
  size_t total = 0;
  MUST(cudaMalloc(&small, 1000));
  MUST(cudaMemGetInfo(&available, &total));
  size_t bytes = available;
  while (cudaMalloc(&big, bytes) != cudaSuccess) bytes -= 1 << 20;
  cudaGetLastError();
  std::printf("4 KiB beside it: %d\n", allocate(&theirs, 4096));
  MUST(cudaFree(theirs));
  MUST(cudaFree(big));
  MUST(cudaFree(small));
  // With nothing live the chunk is no more than it would be without.
  MUST(cudaMalloc(&big, total));
  std::printf("all of %zu\n", total);
  MUST(cudaFree(big));
  return 0;
}
