// SPDX-License-Identifier: Apache-2.0
// Allocations and frees whose number, sizes and stalls are known, for CUPOOL_MODE=observe: of each
// round's five frees two find work pending, and three an idle GPU.
#include <cuda_runtime_api.h>

#include "probe.h"

int main(int argc, char** argv) {
  const long rounds = probe::number(argc, argv, "rounds", 10);
  constexpr size_t kSmall = 100000;      // class of 106,496 bytes
  constexpr size_t kLarge = 5ull << 20;  // class of 6 MiB
  cudaStream_t stream = nullptr;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  uint64_t calls = 0;
  for (long round = 0; round < rounds; ++round) {
    void* small[3] = {};
    void* large[2] = {};
    for (void*& block : small) MUST(cudaMalloc(&block, kSmall));
    for (void*& block : large) {
      MUST(cudaMalloc(&block, kLarge));
      MUST(cudaMemsetAsync(block, 1, kLarge, stream));
      MUST(cudaFree(block));  // busy
    }
    for (void* block : small) MUST(cudaFree(block));
    calls += 5;
  }
  void* kept = nullptr;
  MUST(cudaMalloc(&kept, kSmall));
  MUST(cudaStreamDestroy(stream));
  probe::print_counts(calls + 1, calls);
  return 0;
}
