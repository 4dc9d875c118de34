// SPDX-License-Identifier: Apache-2.0
// Fills the device until it is out of memory, frees all, fills again with other sizes (contract 4):
// out of memory comes only where the program would have had it without us. The test compares the
// totals within a chunk, all else exactly. mode= legacy, others (other allocators after a free),
// hopeless (requests that the device has no room for), busy (while the GPU works on other memory).
#include <cuda_runtime_api.h>

#include <chrono>
#include <vector>

#include "probe.h"

namespace {

constexpr size_t kMiB = 1 << 20;

std::vector<void*> fill(size_t block, int* code) {
  std::vector<void*> blocks;
  for (;;) {
    void* p = nullptr;
    *code = cudaMalloc(&p, block);
    if (*code != 0) return blocks;
    blocks.push_back(p);
  }
}

void fill_and_free(size_t block) {
  int code = 0;
  const std::vector<void*> blocks = fill(block, &code);
  std::printf("code %d last error %d\n", code, static_cast<int>(cudaGetLastError()));
  std::printf("total block_mib=%zu total_mib=%zu\n", block / kMiB, blocks.size() * block / kMiB);
  for (void* p : blocks) MUST(cudaFree(p));
}

// The GPU works on the program's own pool, which leaves too little. No freed memory is in use, so
// there is nothing to wait for.
void refused_while_busy() {
  using Clock = std::chrono::steady_clock;
  constexpr size_t kOwn = 64 * kMiB;
  void* small = nullptr;
  void* own = nullptr;
  size_t available = 0;
  size_t total = 0;
  MUST(cudaMalloc(&small, 1000));
  MUST(cudaFree(small));
  MUST(cudaMallocAsync(&own, kOwn, nullptr));
  MUST(cudaDeviceSynchronize());
  MUST(cudaMemGetInfo(&available, &total));
  MUST(cudaMemsetAsync(own, 1, kOwn, nullptr));
  const Clock::time_point start = Clock::now();
  for (size_t less : {0, 16, 32}) {
    void* p = nullptr;
    std::printf("refused %d\n", static_cast<int>(cudaMalloc(&p, total - less * kMiB)));
  }
  std::printf("at once %d\n", Clock::now() - start < std::chrono::seconds(5));
  cudaGetLastError();
  MUST(cudaFreeAsync(own, nullptr));
}

// What legacy code freed must be there for every other allocator of the process.
void others_after_free() {
  int code = 0;
  size_t available = 0;
  size_t total = 0;
  for (const int kind : {0, 1, 2}) {
    std::vector<void*> blocks = fill(16 * kMiB, &code);
    for (void* p : blocks) MUST(cudaFree(p));
    MUST(cudaMemGetInfo(&available, &total));
    const size_t most = available * 3 / 4 / kMiB * kMiB;
    void* p = nullptr;
    if (kind == 0) {
      code = cudaMallocAsync(&p, most, nullptr);
      if (code == 0) MUST(cudaFreeAsync(p, nullptr));
    } else if (kind == 1) {
      code = cudaMallocManaged(&p, most, cudaMemAttachGlobal);
      if (code == 0) MUST(cudaFree(p));
    } else {
      code = cudaMalloc(&p, most);
      if (code == 0) MUST(cudaFree(p));
    }
    MUST(cudaDeviceSynchronize());
    cudaMemPool_t pool = nullptr;
    MUST(cudaDeviceGetDefaultMemPool(&pool, 0));
    MUST(cudaMemPoolTrimTo(pool, 0));
    std::printf("kind %d: %d\n", kind, code);
  }
}

// As a program does that asks for all there is, a little less, and so on.
void ask_for_too_much() {
  size_t available = 0;
  size_t total = 0;
  void* kept = nullptr;
  MUST(cudaMalloc(&kept, 64 * kMiB));
  MUST(cudaMemGetInfo(&available, &total));
  for (size_t more = 8; more > 0; --more) {
    void* p = nullptr;
    std::printf("%d\n", static_cast<int>(cudaMalloc(&p, available + more * kMiB)));
  }
  MUST(cudaFree(kept));
}

}  // namespace

int main(int argc, char** argv) {
  if (probe::argument_is(argc, argv, "mode", "hopeless")) {
    ask_for_too_much();
    return 0;
  }
  if (probe::argument_is(argc, argv, "mode", "busy")) {
    refused_while_busy();
    return 0;
  }
  if (probe::argument_is(argc, argv, "mode", "others")) {
    others_after_free();
    return 0;
  }
  for (const size_t block : {16 * kMiB, 50 * kMiB, 4 * kMiB, 16 * kMiB}) fill_and_free(block);
  // One large piece after many small ones: caches must be given back in time.
  size_t available = 0;
  size_t total = 0;
  MUST(cudaMemGetInfo(&available, &total));
  void* p = nullptr;
  std::printf("large piece: %d\n",
              static_cast<int>(cudaMalloc(&p, available / 10 * 9 / kMiB * kMiB)));
  MUST(cudaFree(p));
  return 0;
}
