// SPDX-License-Identifier: Apache-2.0
// A program that allocates at known call sites in known shares (CUPOOL_SITES). Arguments: rounds=N,
// thread=1 (in a thread of its own), work=1 (of the GPU, before each free of a large block).
#include <cuda_runtime_api.h>

#include <thread>
#include <vector>

#include "probe.h"

extern "C" {

__attribute__((noinline, visibility("default"))) void* site_small() {
  void* address = nullptr;
  MUST(cudaMalloc(&address, 40000));
  return address;
}

__attribute__((noinline, visibility("default"))) void* site_large() {
  void* address = nullptr;
  MUST(cudaMalloc(&address, size_t{3} << 20));
  return address;
}

__attribute__((noinline, visibility("default"))) void* site_kept() {
  void* address = nullptr;
  MUST(cudaMalloc(&address, size_t{1} << 20));
  return address;
}

}  // extern "C"

namespace {

constexpr size_t kWork = size_t{4} << 20;  // takes milliseconds

// `target`: the work's, or null without.
void work(long rounds, void* target) {
  for (long i = 0; i < rounds; ++i) {
    MUST(cudaFree(site_small()));  // temporary
    if (i % 10 != 0) continue;
    void* const large = site_large();
    for (int j = 0; j < 4; ++j) MUST(cudaFree(site_small()));
    if (target != nullptr) MUST(cudaMemsetAsync(target, 1, kWork, nullptr));
    MUST(cudaFree(large));  // not so
  }
  MUST(cudaDeviceSynchronize());
}

}  // namespace

int main(int argc, char** argv) {
  const long rounds = probe::number(argc, argv, "rounds", 2000);
  void* target = nullptr;
  if (probe::number(argc, argv, "work", 0) != 0) MUST(cudaMalloc(&target, kWork));
  std::vector<void*> kept;
  for (int i = 0; i < 16; ++i) kept.push_back(site_kept());
  if (probe::number(argc, argv, "thread", 0) != 0) {
    std::thread(work, rounds, target).join();
  } else {
    work(rounds, target);
  }
  for (std::size_t i = 0; i < kept.size() / 2; ++i) MUST(cudaFree(kept[i]));
  std::printf("done\n");
  return 0;
}
