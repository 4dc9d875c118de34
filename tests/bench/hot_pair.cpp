// SPDX-License-Identifier: Apache-2.0
// Pairs of cudaMalloc and cudaFree by a program with the shared runtime, to be run under the
// preload: what instructions.py counts and any clock may time. Arguments: pairs, bytes (0: mixed,
// from 256 B to 64 KiB, sixteen blocks live), and what else: lane (the process is in one lane),
// launch (launches in a lane instead of pairs), host (pairs of cudaMallocHost and cudaFreeHost),
// host_by_driver (of cuMemHostAlloc and cuMemFreeHost, which programs with a static runtime call),
// async, async_by_driver (the same of stream-ordered memory, in one stream).
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr std::size_t kSizes = 4096;

// As many requests of each power of two.
std::array<std::size_t, kSizes> mixed_sizes() {
  std::array<std::size_t, kSizes> sizes{};
  std::uint32_t state = 20261123;
  for (std::size_t& bytes : sizes) {
    state = state * 1664525u + 1013904223u;
    const std::size_t least = std::size_t{256} << (state >> 29);
    bytes = least + (state >> 8) % least;
  }
  return sizes;
}

bool run_mixed(long pairs, std::size_t) {
  const std::array<std::size_t, kSizes> sizes = mixed_sizes();
  std::array<void*, 16> live{};
  for (long i = 0; i < pairs; ++i) {
    void*& block = live[static_cast<std::size_t>(i) % live.size()];
    if (block != nullptr && cudaFree(block) != cudaSuccess) return false;
    if (cudaMalloc(&block, sizes[static_cast<std::size_t>(i) % kSizes]) != cudaSuccess)
      return false;
  }
  for (void* block : live) {
    if (cudaFree(block) != cudaSuccess) return false;
  }
  return true;
}

bool run_fixed(long pairs, std::size_t bytes) {
  for (long i = 0; i < pairs; ++i) {
    void* block = nullptr;
    if (cudaMalloc(&block, bytes) != cudaSuccess || cudaFree(block) != cudaSuccess) return false;
  }
  return true;
}

bool run_host(long pairs, std::size_t bytes) {
  for (long i = 0; i < pairs; ++i) {
    void* block = nullptr;
    if (cudaMallocHost(&block, bytes) != cudaSuccess || cudaFreeHost(block) != cudaSuccess)
      return false;
  }
  return true;
}

bool run_host_by_driver(long pairs, std::size_t bytes) {
  for (long i = 0; i < pairs; ++i) {
    void* block = nullptr;
    if (cuMemHostAlloc(&block, bytes, 0) != CUDA_SUCCESS || cuMemFreeHost(block) != CUDA_SUCCESS)
      return false;
  }
  return true;
}

cudaStream_t stream = nullptr;  // of the pairs of stream-ordered memory

bool run_async(long pairs, std::size_t bytes) {
  for (long i = 0; i < pairs; ++i) {
    void* block = nullptr;
    if (cudaMallocAsync(&block, bytes, stream) != cudaSuccess ||
        cudaFreeAsync(block, stream) != cudaSuccess)
      return false;
  }
  return true;
}

bool run_async_by_driver(long pairs, std::size_t bytes) {
  for (long i = 0; i < pairs; ++i) {
    CUdeviceptr block = 0;
    if (cuMemAllocAsync(&block, bytes, stream) != CUDA_SUCCESS ||
        cuMemFreeAsync(block, stream) != CUDA_SUCCESS)
      return false;
  }
  return true;
}

// By the driver interface, as every runtime does. Enough of them open the lane (docs/design.md).
bool launch(long times) {
  CUmodule module = nullptr;
  CUfunction spin = nullptr;
  std::uint64_t ns = 1;
  void* arguments[] = {&ns};
  if (cuModuleLoadData(&module, "image") != CUDA_SUCCESS ||
      cuModuleGetFunction(&spin, module, "spin_ns") != CUDA_SUCCESS) {
    return false;
  }
  for (long i = 0; i < times; ++i) {
    if (cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) != CUDA_SUCCESS)
      return false;
  }
  return cudaDeviceSynchronize() == cudaSuccess;
}

}  // namespace

int main(int argc, char** argv) {
  const long pairs = argc > 1 ? std::atol(argv[1]) : 1000000;
  const auto bytes = static_cast<std::size_t>(argc > 2 ? std::atol(argv[2]) : 65536);
  const char* const what = argc > 3 ? argv[3] : "";
  if (std::strcmp(what, "lane") == 0 && !(run_fixed(16, bytes) && launch(16))) return 1;
  if (std::strcmp(what, "launch") == 0) return run_fixed(16, bytes) && launch(pairs) ? 0 : 1;
  auto* run = bytes == 0 ? run_mixed : run_fixed;
  if (std::strcmp(what, "host") == 0) run = run_host;
  if (std::strcmp(what, "host_by_driver") == 0) run = run_host_by_driver;
  if (std::strcmp(what, "async") == 0) run = run_async;
  if (std::strcmp(what, "async_by_driver") == 0) run = run_async_by_driver;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return 1;
  if (!run_fixed(1, 65536) || (run != run_mixed && !run(16, bytes))) return 1;
  const auto start = std::chrono::steady_clock::now();
  if (!run(pairs, bytes)) return 1;
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
  std::printf("ns_per_pair=%.1f\n", took.count() / static_cast<double>(pairs));
  return 0;
}
