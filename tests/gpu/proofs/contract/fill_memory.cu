// SPDX-License-Identifier: Apache-2.0
// How much memory a program gets, and what else still works when it has taken all (contracts 4, 5).
// One part a process:
//   fill_memory fresh | live | phase     free memory, asked for with 1 MiB less until it is given
//   fill_memory blocks                   equal blocks until there is no more
#include <cuda.h>
#include <cuda_runtime.h>

#include "common/kernels.cuh"
#include "contract.h"

namespace {

using contract::fact;
using contract::kGiB;
using contract::kMiB;
using contract::verdict;

size_t free_bytes() {
  size_t free = 0;
  size_t total = 0;
  MUST(cudaMemGetInfo(&free, &total));
  return free;
}

// The loop of programs that want everything.
void* everything(size_t* got) {
  const size_t free = free_bytes();
  size_t ask = free;
  int refused = 0;
  const auto begin = gpu_test::Clock::now();
  void* block = nullptr;
  while (ask > kMiB) {
    const cudaError_t code = cudaMalloc(&block, ask);
    if (code == cudaSuccess) break;
    MUST(code == cudaErrorMemoryAllocation ? cudaSuccess : code);
    MUST(cudaGetLastError() == cudaErrorMemoryAllocation ? 0 : 1);
    ++refused;
    ask -= kMiB;
  }
  *got = block == nullptr ? 0 : ask;
  fact("free_asked=%zu", free);
  fact("refused=%d", refused);
  fact("fill_seconds=%.3f", gpu_test::seconds_since(begin));
  return block;
}

// A kernel of this program is loaded when it is first launched: here, with no memory left.
void code_still_loads(void* block, size_t bytes) {
  uint32_t* words = static_cast<uint32_t*>(block);
  const uint64_t count = 4096;
  stamp_u32<<<16, 256>>>(words, count, 0x11u);
  const int first = cudaGetLastError();
  fact("launch_when_full=%d", first);
  verdict(first == 0, "a kernel's first launch when memory is full");
  CUmodule module = nullptr;
  const int loaded = cuModuleLoad(&module, std::getenv("CUPOOL_TEST_MODULE"));
  fact("module_when_full=%d", loaded);
  verdict(loaded == 0, "cuModuleLoad when memory is full");
  if (first != 0) return;
  // Both ends are the program's own memory.
  uint32_t* end = words + bytes / 4 - count;
  stamp_u32<<<16, 256>>>(end, count, 0x22u);
  MUST(cudaDeviceSynchronize());
  uint32_t low = 0;
  uint32_t high = 0;
  MUST(cudaMemcpy(&low, words + count - 1, 4, cudaMemcpyDeviceToHost));
  MUST(cudaMemcpy(&high, end + count - 1, 4, cudaMemcpyDeviceToHost));
  verdict(low == 0x11u && high == 0x22u, "both ends of a block of all memory hold what is written");
}

void fill(const char* name) {
  size_t got = 0;
  void* block = everything(&got);
  const bool fresh = std::strcmp(name, "fresh") == 0;
  fact("%s.fill_%s=%zu", fresh ? "exact" : "bytes", name, got);
  if (!verdict(block != nullptr, "something is given")) return;
  code_still_loads(block, got);
  const int freed = cudaFree(block);
  verdict(freed == 0, "free of it all");
  const size_t after = free_bytes();
  fact("bytes.free_after_%s=%zu", name, after);
  verdict(after + 64 * kMiB >= got, "freed memory counts as free");
}

void fill_beside_live_blocks() {
  std::vector<void*> live;
  for (int i = 0; i < 10; ++i) {
    live.push_back(nullptr);
    MUST(cudaMalloc(&live.back(), size_t{1000} << i));
  }
  for (const size_t mib : {100, 333, 1000}) {
    live.push_back(nullptr);
    MUST(cudaMalloc(&live.back(), mib * kMiB));
  }
  for (size_t i = 0; i < live.size(); ++i) {
    MUST(cudaMemset(live[i], static_cast<int>(i + 1), 1000));
  }
  fill("live");
  bool kept = true;
  for (size_t i = 0; i < live.size(); ++i) {
    unsigned char bytes[1000];
    MUST(cudaMemcpy(bytes, live[i], sizeof bytes, cudaMemcpyDeviceToHost));
    for (const unsigned char byte : bytes) kept = kept && byte == i + 1;
    MUST(cudaFree(live[i]));
  }
  verdict(kept, "live blocks keep their content");
}

void fill_after_a_phase() {
  contract::Random random(7);
  std::vector<void*> blocks;
  const size_t bound = free_bytes() / 2;
  for (size_t held = 0; blocks.size() < 1500;) {
    const size_t bytes = (512 + random.below(512)) << random.below(19);
    if (held + bytes > bound) break;
    blocks.push_back(nullptr);
    MUST(cudaMalloc(&blocks.back(), bytes));
    held += bytes;
  }
  for (size_t i = 0; i < blocks.size(); i += 2) MUST(cudaFree(blocks[i]));
  for (size_t i = 1; i < blocks.size(); i += 2) MUST(cudaFree(blocks[i]));
  fill("phase");
}

size_t until_no_more(size_t bytes, std::vector<void*>* blocks) {
  size_t count = 0;
  for (;; ++count) {
    void* block = nullptr;
    const cudaError_t code = cudaMalloc(&block, bytes);
    if (code != cudaSuccess) {
      MUST(code == cudaErrorMemoryAllocation ? cudaSuccess : code);
      MUST(cudaGetLastError() == cudaErrorMemoryAllocation ? 0 : 1);
      return count;
    }
    blocks->push_back(block);
  }
}

void fill_with_blocks() {
  const size_t at_start = free_bytes();
  fact("bytes.free_at_start=%zu", at_start);
  for (const size_t mib : {1, 16, 50, 333}) {
    const auto begin = gpu_test::Clock::now();
    // Most of the memory in one block: this is about the last gigabytes, and time is short.
    const size_t rest = std::min(free_bytes() / 4, (mib > 100 ? 12 : 4) * kGiB);
    const size_t bulk = (free_bytes() - rest) / kMiB * kMiB;
    std::vector<void*> blocks(1, nullptr);
    MUST(cudaMalloc(&blocks.front(), bulk));
    const size_t count = until_no_more(mib * kMiB, &blocks);
    const size_t small = until_no_more(kMiB, &blocks);
    fact("blocks_of_%zu_mib=%zu", mib, count);
    fact("bytes.total_with_%zu_mib=%zu", mib, bulk + count * mib * kMiB + small * kMiB);
    for (void* block : blocks) MUST(cudaFree(block));
    const size_t after = free_bytes();
    fact("bytes.free_after_%zu_mib=%zu", mib, after);
    verdict(after + 64 * kMiB >= at_start,
            "all is free again after blocks of " + std::to_string(mib) + " MiB");
    fact("blocks_of_%zu_mib_seconds=%.3f", mib, gpu_test::seconds_since(begin));
  }
}

}  // namespace

int main(int argc, char** argv) {
  MUST(cudaFree(nullptr));
  if (contract::asked(argc, argv, "fresh")) {
    fill("fresh");
  } else if (contract::asked(argc, argv, "live")) {
    fill_beside_live_blocks();
  } else if (contract::asked(argc, argv, "phase")) {
    fill_after_a_phase();
  } else if (contract::asked(argc, argv, "blocks")) {
    fill_with_blocks();
  } else {
    return 2;
  }
  return contract::exit_code();
}
