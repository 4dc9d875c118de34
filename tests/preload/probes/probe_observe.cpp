// Allocations and frees whose number, sizes and stalls are known, for CUPOOL_MODE=observe: the
// first `busy` frees of a round find work pending, the others an idle GPU.
#include <cuda_runtime_api.h>

#include <vector>

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
    void* large = nullptr;
    for (void*& block : small) MUST(cudaMalloc(&block, kSmall));
    MUST(cudaMalloc(&large, kLarge));
    MUST(cudaMemsetAsync(large, 1, kLarge, stream));
    MUST(cudaFree(large));  // busy
    MUST(cudaFree(small[0]));
    MUST(cudaMemsetAsync(small[1], 1, kSmall, stream));
    MUST(cudaFree(small[1]));  // busy
    MUST(cudaFree(small[2]));
    calls += 4;
  }
  void* kept = nullptr;
  MUST(cudaMalloc(&kept, kSmall));
  MUST(cudaStreamDestroy(stream));
  probe::print_counts(calls + 1, calls + 1);
  return 0;
}
