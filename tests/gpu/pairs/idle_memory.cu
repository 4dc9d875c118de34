// SPDX-License-Identifier: Apache-2.0
// A program that leaves much memory idle and goes on with small blocks: what do its calls feel of
// the memory that goes back to the device meanwhile (CUPOOL_DECAY_MS), and what does the first
// allocation wait for (CUPOOL_PREALLOC)? Times malloc, launch and free one by one.
// Arguments: idle_mib=N in blocks of block_mib=N, seconds=N of small blocks
#include <cuda_runtime.h>

#include "common/kernels.cuh"
#include "pairs_clock.h"

namespace {

constexpr uint64_t kWords = 16 << 10;  // 64 KiB

struct Samples {
  std::vector<uint64_t> malloc, launch, free;
};

uint64_t leave_idle(long blocks, size_t bytes) {
  std::vector<uint32_t*> left(static_cast<size_t>(blocks));
  for (uint32_t*& block : left) {
    MUST(cudaMalloc(&block, bytes));
    stamp_u32<<<64, 256>>>(block, bytes / sizeof(uint32_t), 1);
    MUST(cudaGetLastError());
  }
  MUST(cudaDeviceSynchronize());
  for (uint32_t* block : left) MUST(cudaFree(block));
  return left.size();
}

uint64_t small_blocks(long seconds, Samples* samples) {
  const auto begin = gpu_test::Clock::now();
  uint64_t count = 0;
  for (; gpu_test::seconds_since(begin) < static_cast<double>(seconds); ++count) {
    uint32_t* block = nullptr;
    const uint64_t before = pairs::ticks();
    MUST(cudaMalloc(&block, kWords * sizeof(uint32_t)));
    const uint64_t allocated = pairs::ticks();
    stamp_u32<<<8, 256>>>(block, kWords, static_cast<uint32_t>(count));
    const uint64_t launched = pairs::ticks();
    MUST(cudaFree(block));
    samples->malloc.push_back(allocated - before);
    samples->launch.push_back(launched - allocated);
    samples->free.push_back(pairs::ticks() - launched);
  }
  MUST(cudaDeviceSynchronize());
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  const long block_mib = gpu_test::number(argc, argv, "block_mib", 64);
  const long idle_mib = gpu_test::number(argc, argv, "idle_mib", 16384);
  const long seconds = gpu_test::number(argc, argv, "seconds", 3);
  const double scale = pairs::ns_per_tick();
  MUST(cudaSetDevice(0));
  MUST(cudaFree(nullptr));  // the context is there
  void* first = nullptr;
  const uint64_t begin = pairs::ticks();
  MUST(cudaMalloc(&first, 4096));
  const double first_us = static_cast<double>(pairs::ticks() - begin) * scale / 1e3;
  MUST(cudaFree(first));
  std::printf("time first_malloc_us=%.1f\n", first_us);

  const uint64_t left = leave_idle(idle_mib / block_mib, static_cast<size_t>(block_mib) << 20);
  Samples samples;
  const uint64_t count = small_blocks(seconds, &samples);
  pairs::print_latencies("malloc", &samples.malloc, scale);
  pairs::print_latencies("launch", &samples.launch, scale);
  pairs::print_latencies("free", &samples.free, scale);
  pairs::print_timer(scale);
  gpu_test::print_counts(1 + left + count, 1 + left + count);
  std::printf("result done\n");
  return 0;
}
