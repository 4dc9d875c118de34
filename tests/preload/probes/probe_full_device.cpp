// SPDX-License-Identifier: Apache-2.0
// A device that is filled to the last block while a small one is live (contract 4): what then takes
// a little memory of the driver finds the rest of the chunk that the small block has opened. Here
// that is a library whose allocations pass through. mode=stream: a stream on a device that was
// filled: by small pieces (fill=pieces), all but 8 MiB by one block (fill=block), or by the largest
// block that there is, after others were refused (fill=walk).
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <string>

#include "probe.h"

namespace {

// The context's first stream needs no memory that is not its own already.
int streams(const std::string& fill) {
  void* small[5] = {};
  void* big = nullptr;
  size_t available = 0;
  size_t total = 0;
  for (void*& block : small) MUST(cudaMalloc(&block, 1000));
  MUST(cudaMemGetInfo(&available, &total));
  if (fill == "block") MUST(cudaMalloc(&big, available - (8 << 20)));
  if (fill == "walk") {
    size_t bytes = available + (8 << 20);
    while (cudaMalloc(&big, bytes) != cudaSuccess) bytes -= 1 << 20;
  } else {
    while (cudaMalloc(&big, 1 << 20) == cudaSuccess) continue;
  }
  cudaGetLastError();
  cudaStream_t stream = nullptr;
  std::printf("stream: %d\n", static_cast<int>(cudaStreamCreate(&stream)));
  std::printf("the next: %d\n", static_cast<int>(cudaStreamCreate(&stream)));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (probe::argument_is(argc, argv, "mode", "stream")) {
    return streams(probe::argument(argc, argv, "fill", "pieces"));
  }
  const std::string folder = std::string(argv[0]).substr(0, std::string(argv[0]).rfind('/') + 1);
  void* const library = dlopen((folder + "libnccl-net_shared.so").c_str(), RTLD_NOW | RTLD_LOCAL);
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
  cudaError_t refusal = cudaSuccess;
  while ((refusal = cudaMalloc(&big, bytes)) == cudaErrorMemoryAllocation) bytes -= 1 << 20;
  MUST(refusal);
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
