// The shortest program that uses CUDA: one cudaMalloc and its cudaFree. What a preload adds to it
// is what it adds to the start and the end of any; pairs.py takes the time of the whole process.
#include <cuda_runtime.h>

#include "gpu_test.h"

int main() {
  const auto begin = gpu_test::Clock::now();
  void* pointer = nullptr;
  MUST(cudaMalloc(&pointer, 1 << 20));
  const double first = gpu_test::seconds_since(begin) * 1e3;
  MUST(cudaFree(pointer));
  std::printf("time first_malloc_ms=%.3f\n", first);
  return 0;
}
