// SPDX-License-Identifier: Apache-2.0
// Short programs that use CUDA: what a preload adds to their start and end. pairs.py takes the time
// of the whole process, and of its parts by the times of the clock that are printed. Arguments:
// blocks=N (default 1: one cudaMalloc and its cudaFree, the shortest of all), rounds=N (default 1):
// so many times, N blocks are allocated, filled by a kernel, copied back and freed; reset=1: the
// device is reset in the end, which gives back what lies idle, and first used again.
#include <cuda_runtime.h>
#include <time.h>

#include <algorithm>
#include <vector>

#include "common/gpu_test.h"

namespace {

constexpr size_t kBytes = 1 << 20;

__global__ void fill(unsigned char* bytes, unsigned char value) {
  bytes[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

double longest_ms = 0;

// Of the clock that other processes read as well.
long long monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

unsigned char* allocate() {
  void* block = nullptr;
  const auto begin = gpu_test::Clock::now();
  MUST(cudaMalloc(&block, kBytes));
  longest_ms = std::max(longest_ms, gpu_test::seconds_since(begin) * 1e3);
  return static_cast<unsigned char*>(block);
}

}  // namespace

int main(int argc, char** argv) {
  const long long main_ns = monotonic_ns();
  const auto blocks = static_cast<size_t>(gpu_test::number(argc, argv, "blocks", 1));
  const auto rounds = gpu_test::number(argc, argv, "rounds", 1);
  const auto begin = gpu_test::Clock::now();
  unsigned char* first = allocate();
  const double first_ms = gpu_test::seconds_since(begin) * 1e3;
  const long long first_ns = monotonic_ns();
  longest_ms = 0;
  std::vector<unsigned char> copy(kBytes);
  for (long round = 0; blocks > 1 && round < rounds; ++round) {
    std::vector<unsigned char*> all;
    for (size_t i = 0; i < blocks; ++i) {
      const auto value = static_cast<unsigned char>(round + static_cast<long>(i));
      all.push_back(allocate());
      fill<<<kBytes / 256, 256>>>(all.back(), value);
      MUST(cudaGetLastError());
      MUST(cudaMemcpy(copy.data(), all.back(), kBytes, cudaMemcpyDeviceToHost));
      if (copy.front() != value || copy.back() != value) {
        std::printf("WRONG bytes\n");
        return 3;
      }
    }
    for (unsigned char* block : all) MUST(cudaFree(block));
  }
  MUST(cudaFree(first));
  std::printf("time first_malloc_ms=%.3f longest_malloc_ms=%.3f\n", first_ms, longest_ms);
  if (gpu_test::number(argc, argv, "reset", 0) != 0) {
    const auto reset = gpu_test::Clock::now();
    MUST(cudaDeviceReset());
    const double reset_ms = gpu_test::seconds_since(reset) * 1e3;
    const auto again = gpu_test::Clock::now();
    unsigned char* block = allocate();
    std::printf("time reset_ms=%.3f malloc_after_ms=%.3f\n", reset_ms,
                gpu_test::seconds_since(again) * 1e3);
    MUST(cudaFree(block));
  }
  std::printf("clock main_ns=%lld first_ns=%lld end_ns=%lld\n", main_ns, first_ns, monotonic_ns());
  return 0;
}
