// SPDX-License-Identifier: Apache-2.0
// Two non-blocking streams with long kernels that fit on the GPU side by side. They must overlap
// with allocations and frees between their kernels as they do without: cupool puts no order between
// the program's streams. The kernels last a fixed time, so any order that creeps in adds up.
// Arguments: kernels=N microseconds=N repeats=N
#include <cuda_runtime.h>

#include <thread>

#include "common/gpu_test.h"
#include "common/kernels.cuh"

namespace {

constexpr uint64_t kWords = 1 << 18;  // 1 MiB

struct Setup {
  int kernels;
  uint64_t nanoseconds;
  cudaStream_t streams[2];
  uint32_t* blocks[2];  // for the passes without frees
};

void one_kernel(const Setup& setup, int which, bool frees) {
  uint32_t* words = setup.blocks[which];
  if (frees) MUST(cudaMalloc(&words, kWords * sizeof(uint32_t)));
  stamp_u32<<<8, 256, 0, setup.streams[which]>>>(words, kWords, 1);
  spin_ns<<<4, 32, 0, setup.streams[which]>>>(setup.nanoseconds);
  MUST(cudaGetLastError());
  if (frees) MUST(cudaFree(words));
}

double pass(const Setup& setup, bool frees, bool two_threads) {
  MUST(cudaDeviceSynchronize());
  const auto begin = gpu_test::Clock::now();
  if (two_threads) {
    const auto loop = [&](int which) {
      for (int i = 0; i < setup.kernels; ++i) one_kernel(setup, which, frees);
    };
    std::thread other(loop, 1);
    loop(0);
    other.join();
  } else {
    for (int i = 0; i < 2 * setup.kernels; ++i) one_kernel(setup, i % 2, frees);
  }
  for (const cudaStream_t stream : setup.streams) MUST(cudaStreamSynchronize(stream));
  return gpu_test::seconds_since(begin) * 1e3;
}

// Alternating, so that a clock that changes reaches both sides.
void measure(const Setup& setup, const char* name, bool two_threads, int repeats) {
  std::vector<double> without;
  std::vector<double> with;
  pass(setup, true, two_threads);
  for (int i = 0; i < repeats; ++i) {
    without.push_back(pass(setup, false, two_threads));
    with.push_back(pass(setup, true, two_threads));
  }
  const double plain = gpu_test::median(without);
  const double freeing = gpu_test::median(with);
  std::printf("time %s_plain_ms=%.3f %s_frees_ms=%.3f %s_ratio=%.4f\n", name, plain, name, freeing,
              name, freeing / plain);
}

}  // namespace

int main(int argc, char** argv) {
  Setup setup{};
  setup.kernels = static_cast<int>(gpu_test::number(argc, argv, "kernels", 40));
  setup.nanoseconds =
      static_cast<uint64_t>(gpu_test::number(argc, argv, "microseconds", 500)) * 1000;
  const int repeats = static_cast<int>(gpu_test::number(argc, argv, "repeats", 5));
  for (int i = 0; i < 2; ++i) {
    MUST(cudaStreamCreateWithFlags(&setup.streams[i], cudaStreamNonBlocking));
    MUST(cudaMalloc(&setup.blocks[i], kWords * sizeof(uint32_t)));
  }
  // What one stream alone takes: two that overlap take hardly more, two in a row twice as much.
  std::printf("info kernels of one stream alone: %.3f ms\n",
              static_cast<double>(setup.kernels) * static_cast<double>(setup.nanoseconds) / 1e6);
  measure(setup, "one_thread", false, repeats);
  measure(setup, "two_threads", true, repeats);
  for (int i = 0; i < 2; ++i) {
    MUST(cudaFree(setup.blocks[i]));
    MUST(cudaStreamDestroy(setup.streams[i]));
  }
  std::printf("result done\n");
  return 0;
}
