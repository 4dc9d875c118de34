// SPDX-License-Identifier: Apache-2.0
// A program that allocates at known call sites in known shares (CUPOOL_SITES). Arguments: rounds=N,
// thread=1 (in a thread of its own).
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

void work(long rounds) {
  for (long i = 0; i < rounds; ++i) {
    MUST(cudaFree(site_small()));  // temporary
    if (i % 10 != 0) continue;
    void* const large = site_large();
    for (int j = 0; j < 4; ++j) MUST(cudaFree(site_small()));
    MUST(cudaFree(large));  // not so
  }
}

}  // namespace

int main(int argc, char** argv) {
  const long rounds = probe::number(argc, argv, "rounds", 2000);
  std::vector<void*> kept;
  for (int i = 0; i < 16; ++i) kept.push_back(site_kept());
  if (probe::number(argc, argv, "thread", 0) != 0) {
    std::thread(work, rounds).join();
  } else {
    work(rounds);
  }
  for (std::size_t i = 0; i < kept.size() / 2; ++i) MUST(cudaFree(kept[i]));
  std::printf("done\n");
  return 0;
}
