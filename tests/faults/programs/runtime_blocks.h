// SPDX-License-Identifier: Apache-2.0
// Blocks of cudaMalloc as the programs of the fault sweep handle them: filled, read back, freed.
#pragma once

#include <cuda_runtime_api.h>

#include "tolerant.h"

namespace faults {

inline void* pointer(const Block& block) {
  return reinterpret_cast<void*>(block.address);
}

inline bool allocate(size_t size, Block* block) {
  void* p = nullptr;
  if (!TRY(cudaMalloc, &p, size)) return false;
  *block = Block{reinterpret_cast<uintptr_t>(p), size, -1};
  ledger().add(block->address, size);
  return true;
}

inline void fill(Block* block, int value, cudaStream_t stream) {
  block->value = TRY(cudaMemsetAsync, pointer(*block), value, block->size, stream) ? value : -1;
}

// A copy that may still be pending: for a wait that the caller makes.
inline unsigned char* read_back(const Block& block, cudaStream_t stream) {
  unsigned char* host = ledger().host_bytes(block.size);
  const bool done =
      TRY(cudaMemcpyAsync, host, pointer(block), block.size, cudaMemcpyDeviceToHost, stream);
  return done ? host : nullptr;
}

inline void check(const Block& block, cudaStream_t stream) {
  const unsigned char* host = read_back(block, stream);
  if (host != nullptr && TRY(cudaStreamSynchronize, stream)) ledger().check(host, block);
}

inline bool release(const Block& block) {
  ledger().remove(block);
  if (TRY(cudaFree, pointer(block))) return true;
  ledger().put_back(block);
  return false;
}

// To be called at the end: a free that failed has freed nothing, and can be made again.
inline void release_again() {
  for (const Block& block : ledger().take_not_freed()) release(block);
}

}  // namespace faults
