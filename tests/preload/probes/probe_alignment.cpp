// SPDX-License-Identifier: Apache-2.0
// Alignment, address ranges and free memory of legacy blocks (contract 5 and 6): 512 bytes for all,
// 2 MiB from 2 MiB up, the range query gives the requested size, cached bytes count as free.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "probe.h"
#include "probe_memory.h"

using probe::free_memory;

namespace {

constexpr size_t kMiB = 1 << 20;

void check_block(void* p, size_t size) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  CHECK(address % 512 == 0);
  if (size >= 2 * kMiB) CHECK(address % (2 * kMiB) == 0);
  for (const size_t offset : {size_t{0}, size / 2, size - 1}) {
    CUdeviceptr base = 0;
    size_t range = 0;
    MUST(cuMemGetAddressRange(&base, &range, address + offset));
    CHECK(base == address);
    CHECK(range == size);
  }
  CUdevice ordinal = -1;
  MUST(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address));
  CHECK(ordinal == 0);
  CUcontext context = nullptr;
  CUcontext current = nullptr;
  MUST(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address));
  MUST(cuCtxGetCurrent(&current));
  CHECK(context != nullptr && context == current);
}

}  // namespace

int main() {
  uint64_t mallocs = 0;
  std::vector<std::pair<void*, size_t>> blocks;
  for (int round = 0; round < 3; ++round) {
    for (const size_t size : {size_t{1}, size_t{3}, size_t{512}, size_t{777}, size_t{4096},
                              kMiB - 1, kMiB, 2 * kMiB - 1, 2 * kMiB, 2 * kMiB + 1, 5 * kMiB}) {
      void* p = nullptr;
      MUST(cudaMalloc(&p, size));
      ++mallocs;
      check_block(p, size);
      blocks.emplace_back(p, size);
    }
    // No two live blocks overlap.
    std::sort(blocks.begin(), blocks.end());
    for (size_t i = 1; i < blocks.size(); ++i) {
      CHECK(static_cast<char*>(blocks[i - 1].first) + blocks[i - 1].second <=
            static_cast<char*>(blocks[i].first));
    }
    // Free every other one, so that the next round takes reused and fresh blocks.
    std::vector<std::pair<void*, size_t>> kept;
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (i % 2 == 0) {
        MUST(cudaFree(blocks[i].first));
      } else {
        kept.push_back(blocks[i]);
      }
    }
    blocks.swap(kept);
  }
  for (const auto& block : blocks) MUST(cudaFree(block.first));

  // Contract 5. A chunk of 2 MiB either way is what legacy memory itself rounds to.
  const size_t before = free_memory();
  void* big = nullptr;
  MUST(cudaMalloc(&big, 64 * kMiB));
  ++mallocs;
  const size_t during = free_memory();
  MUST(cudaFree(big));
  const size_t after = free_memory();
  std::printf("allocation shows: %d\n", during + 62 * kMiB <= before);
  std::printf("freed memory counts as free: %d\n", after + 2 * kMiB >= before);
  std::printf("alignment ok\n");
  probe::print_counts(mallocs, mallocs);
  return 0;
}
