// SPDX-License-Identifier: Apache-2.0
// Free memory as the program sees it (contract 5): null arguments, idle memory counted as free,
// never more than there is, from several threads while others allocate and free.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <thread>
#include <vector>

#include "probe.h"
#include "probe_memory.h"

using probe::free_memory;

namespace {

constexpr size_t kMiB = 1 << 20;

// Plain memory is given back in chunks of 2 MiB, and a small idle block keeps its chunk.
size_t tolerance = 0;

bool all_free(size_t before) {
  const size_t now = free_memory();
  return now <= before && now + tolerance >= before;
}

void null_arguments() {
  size_t value = 0;
  std::printf("runtime, no total: %d\n", static_cast<int>(cudaMemGetInfo(&value, nullptr)));
  std::printf("runtime, no free: %d\n", static_cast<int>(cudaMemGetInfo(nullptr, &value)));
  std::printf("runtime, none: %d\n", static_cast<int>(cudaMemGetInfo(nullptr, nullptr)));
  std::printf("last error %d\n", static_cast<int>(cudaGetLastError()));
  std::printf("driver, no total: %d\n", static_cast<int>(cuMemGetInfo(&value, nullptr)));
  std::printf("driver, no free: %d\n", static_cast<int>(cuMemGetInfo(nullptr, &value)));
  std::printf("driver, none: %d\n", static_cast<int>(cuMemGetInfo(nullptr, nullptr)));
}

// Where idle blocks keep chunks, blocks that fill theirs: how many chunks small ones of several
// threads come to lie in depends on who runs when.
void watch_while_others_allocate() {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&stop, i] {
      MUST(cudaSetDevice(0));
      for (int round = 0; !stop && round < 3000; ++round) {
        void* p = nullptr;
        MUST(cudaMalloc(
            &p, tolerance == 0 ? size_t{1000} << (round + i) % 14 : 2 * kMiB << (round + i) % 3));
        MUST(cudaFree(p));
      }
    });
  }
  for (int i = 0; i < 500; ++i) free_memory();
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main(int argc, char** argv) {
  tolerance = static_cast<size_t>(probe::number(argc, argv, "tolerance_mib", 0)) * kMiB;
  std::printf("without a context: %d\n", static_cast<int>(cuMemGetInfo(nullptr, nullptr)));
  MUST(cudaFree(nullptr));
  null_arguments();
  const size_t before = free_memory();
  for (const size_t size : {size_t{1}, size_t{5000}, 3 * kMiB, 100 * kMiB}) {
    std::vector<void*> blocks;
    for (int i = 0; i < 4; ++i) {
      void* p = nullptr;
      MUST(cudaMalloc(&p, size));
      blocks.push_back(p);
    }
    CHECK(free_memory() + 4 * size <= before);
    for (void* p : blocks) MUST(cudaMemsetAsync(p, 1, size < 4096 ? size : 4096, nullptr));
    for (void* p : blocks) MUST(cudaFree(p));
    std::printf("size %zu: all of it is free again %d\n", size, all_free(before));
    // Freed with work pending, and when that is done.
    MUST(cudaDeviceSynchronize());
    CHECK(all_free(before));
  }
  watch_while_others_allocate();
  MUST(cudaDeviceSynchronize());
  CHECK(all_free(before));
  return 0;
}
