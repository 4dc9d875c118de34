// SPDX-License-Identifier: Apache-2.0
// A small device filled to its end, more than once, and the other allocators of a process beside:
// what idle memory is given back for (contract 4, 5, 6 and 12).
#include "runtime_blocks.h"

namespace {

using faults::Block;
using faults::ledger;

constexpr size_t kMiB = size_t{1} << 20;

size_t free_bytes() {
  size_t available = 0;
  size_t total = 0;
  return TRY(cudaMemGetInfo, &available, &total) ? available : 0;
}

void fill_and_free(size_t size) {
  constexpr size_t kLookedAt = 4096;  // of each block: all of it would take most of the time
  std::vector<std::pair<Block, Block>> blocks;
  Block block;
  while (faults::allocate(size, &block)) {
    Block head{block.address, kLookedAt, -1};
    faults::fill(&head, 1 + static_cast<int>(blocks.size()) % 250, nullptr);
    blocks.emplace_back(block, head);
  }
  for (const auto& each : blocks) {
    faults::check(each.second, nullptr);
    faults::release(each.first);
  }
}

void rows() {
  for (int i = 0; i < 3; ++i) {
    void* p = nullptr;
    size_t pitch = 0;
    if (!TRY(cudaMallocPitch, &p, &pitch, 1000, 50)) continue;
    Block block{reinterpret_cast<uintptr_t>(p), pitch * 50, -1};
    ledger().add(block.address, block.size);
    if (pitch < 1000) ledger().wrong("pitch");
    faults::fill(&block, 0x31, nullptr);
    faults::check(block, nullptr);
    faults::release(block);
  }
}

// Contract 6.
void questions() {
  Block block;
  if (!faults::allocate(3 * kMiB, &block)) return;
  cudaPointerAttributes attributes{};
  if (TRY(cudaPointerGetAttributes, &attributes, faults::pointer(block)) &&
      (attributes.type != cudaMemoryTypeDevice || attributes.device != 0)) {
    ledger().wrong("attributes");
  }
  if (block.address % (2 * kMiB) != 0) ledger().wrong("alignment");
  faults::release(block);
}

// Legacy memory that is freed in stream order, as CUDA allows.
void free_in_stream() {
  cudaStream_t stream = nullptr;
  if (!TRY(cudaStreamCreate, &stream)) return;
  for (int i = 0; i < 4; ++i) {
    Block block;
    if (!faults::allocate(kMiB << i, &block)) continue;
    faults::fill(&block, 0x52, stream);
    faults::check(block, stream);
    ledger().remove(block);
    if (!TRY(cudaFreeAsync, faults::pointer(block), stream)) ledger().put_back(block);
  }
  TRY(cudaStreamSynchronize, stream);
  TRY(cudaStreamDestroy, stream);
}

// The host reads managed memory after a free of other memory, which waits for the kernels.
void managed() {
  void* p = nullptr;
  if (!TRY(cudaMallocManaged, &p, kMiB, cudaMemAttachGlobal)) return;
  Block other;
  if (faults::allocate(kMiB, &other)) {
    const bool filled = TRY(cudaMemsetAsync, p, 0x63, kMiB, nullptr);
    if (faults::release(other) && filled &&
        probe::count_other_bytes(static_cast<unsigned char*>(p), kMiB, 0x63) != 0) {
      ledger().wrong("managed memory after a free");
    }
  }
  TRY(cudaFree, p);
}

// Idle memory of ours has to make place for the program's other allocations.
void others() {
  const size_t most = free_bytes() * 3 / 4 / kMiB * kMiB;
  if (most == 0) return;
  void* p = nullptr;
  if (TRY(cudaMallocAsync, &p, most, nullptr)) TRY(cudaFreeAsync, p, nullptr);
  TRY(cudaDeviceSynchronize);
  cudaArray_t array = nullptr;
  const cudaChannelFormatDesc bytes = {8, 0, 0, 0, cudaChannelFormatKindUnsigned};
  if (TRY(cudaMallocArray, &array, &bytes, 4096, 4096, 0)) TRY(cudaFreeArray, array);
  cudaMemPool_t pool = nullptr;
  if (TRY(cudaDeviceGetDefaultMemPool, &pool, 0)) TRY(cudaMemPoolTrimTo, pool, 0);
}

}  // namespace

int main() {
  const size_t before = free_bytes();
  fill_and_free(16 * kMiB);
  rows();
  questions();
  others();
  fill_and_free(50 * kMiB);
  managed();
  free_in_stream();
  fill_and_free(7 * kMiB);
  fill_and_free(700 * 1000);
  faults::release_again();
  TRY(cudaDeviceSynchronize);
  // All of it is there for one block, but for what the driver keeps for itself.
  Block all;
  if (before > 4 * kMiB && faults::allocate(before - 4 * kMiB, &all)) faults::release(all);
  faults::release_again();
  return ledger().report();
}
