// SPDX-License-Identifier: Apache-2.0
// One of several processes on a GPU that has just enough memory for all of them: allocates, works
// on and frees up to peak_mib, again and again. kind= steady (the same blocks), bursts (other sizes
// each time, with pauses), phases (all of it in one block, then hardly any for a while).
// kind=filler takes the device's memory but for leave_mib, and keeps it. Prints "ready" once it has
// a context, starts at a line on standard input, and prints "result kind=KIND failed=N" after
// seconds=N.
#include <cuda_runtime.h>

#include <chrono>
#include <random>
#include <string>
#include <thread>

#include "common/gpu_test.h"
#include "common/kernels.cuh"

namespace {

constexpr size_t kMiB = 1 << 20;

struct Figures {
  uint64_t rounds = 0;
  uint64_t failed = 0;
  double longest_call = 0;  // seconds
};

// Allocates these blocks, writes to them and frees them.
void round_of(const std::vector<size_t>& sizes, Figures* figures) {
  std::vector<void*> blocks;
  for (const size_t bytes : sizes) {
    void* block = nullptr;
    const auto start = gpu_test::Clock::now();
    const cudaError_t error = cudaMalloc(&block, bytes);
    figures->longest_call = std::max(figures->longest_call, gpu_test::seconds_since(start));
    if (error != cudaSuccess) {
      ++figures->failed;
      cudaGetLastError();
      continue;
    }
    stamp_u32<<<64, 256>>>(static_cast<uint32_t*>(block), bytes / sizeof(uint32_t), 7);
    MUST(cudaGetLastError());
    blocks.push_back(block);
  }
  for (void* block : blocks) MUST(cudaFree(block));
  ++figures->rounds;
}

std::vector<size_t> sizes_of(const std::string& kind, size_t peak, std::mt19937* random) {
  if (kind == "phases") return {peak};
  if (kind == "steady") return std::vector<size_t>(8, peak / 8);
  std::vector<size_t> sizes;
  for (size_t left = peak; left >= 8 * kMiB;) {
    sizes.push_back(std::min(left, ((*random)() % 64 + 2) * kMiB));
    left -= sizes.back();
  }
  return sizes;
}

void fill(size_t leave) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  MUST(cudaMemGetInfo(&free_bytes, &total_bytes));
  void* block = nullptr;
  if (free_bytes > leave) MUST(cudaMalloc(&block, (free_bytes - leave) / kMiB * kMiB));
}

void await_line() {
  for (int c = std::getchar(); c != '\n' && c != EOF;) c = std::getchar();
}

}  // namespace

int main(int argc, char** argv) {
  std::string kind = "steady";
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "kind=", 5) == 0) kind = argv[i] + 5;
  }
  const size_t peak = static_cast<size_t>(gpu_test::number(argc, argv, "peak_mib", 512)) * kMiB;
  const auto seconds = static_cast<double>(gpu_test::number(argc, argv, "seconds", 10));
  std::mt19937 random(static_cast<unsigned>(gpu_test::number(argc, argv, "seed", 1)));
  MUST(cudaFree(nullptr));
  stamp_u32<<<1, 1>>>(nullptr, 0, 0);  // its code is loaded before the device is full
  MUST(cudaDeviceSynchronize());
  if (kind == "filler") {
    fill(static_cast<size_t>(gpu_test::number(argc, argv, "leave_mib", 4096)) * kMiB);
  }
  std::printf("ready\n");
  std::fflush(stdout);
  await_line();
  if (kind == "filler") return 0;

  Figures figures;
  const auto start = gpu_test::Clock::now();
  while (gpu_test::seconds_since(start) < seconds) {
    round_of(sizes_of(kind, peak, &random), &figures);
    if (kind == "phases") std::this_thread::sleep_for(std::chrono::milliseconds(700));
    if (kind == "bursts" && figures.rounds % 20 == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  }
  std::printf("result kind=%s failed=%" PRIu64 " rounds=%" PRIu64 " longest_call_ms=%.1f\n",
              kind.c_str(), figures.failed, figures.rounds, figures.longest_call * 1e3);
  return 0;
}
