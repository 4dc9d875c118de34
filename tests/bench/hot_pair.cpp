// Pairs of cudaMalloc and cudaFree by a program with the shared runtime, to be run under the
// preload: what instructions.py counts and any clock may time. Arguments: pairs, bytes.
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  const long pairs = argc > 1 ? std::atol(argv[1]) : 1000000;
  const auto bytes = static_cast<std::size_t>(argc > 2 ? std::atol(argv[2]) : 65536);
  const auto start = std::chrono::steady_clock::now();
  for (long i = 0; i < pairs; ++i) {
    void* block = nullptr;
    if (cudaMalloc(&block, bytes) != cudaSuccess || cudaFree(block) != cudaSuccess) return 1;
  }
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
  std::printf("ns_per_pair=%.1f\n", took.count() / static_cast<double>(pairs));
  return 0;
}
