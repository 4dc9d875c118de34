// SPDX-License-Identifier: Apache-2.0
// The program's own stream-ordered, managed and host memory beside memory of cudaMalloc (contract
// 12): prints what the driver says of the program's pools, and checks that all bytes are its own.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <vector>

#include "probe.h"

namespace {

constexpr size_t kBytes = 1 << 20;
constexpr int kRounds = 10;

struct Memory {
  void* of_default_pool = nullptr;
  void* of_own_pool = nullptr;
  void* managed = nullptr;
  void* host = nullptr;
  CUarray array = nullptr;
};

void print_used(const char* name, cudaMemPool_t pool) {
  uint64_t used = 0;
  MUST(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  std::printf("%s: %llu bytes used\n", name, static_cast<unsigned long long>(used));
}

void check(const void* memory, int value) {
  std::vector<unsigned char> bytes(kBytes);
  MUST(cudaMemcpy(bytes.data(), memory, kBytes, cudaMemcpyDefault));
  CHECK(probe::count_other_bytes(bytes.data(), kBytes, value) == 0);
}

// Blocks of cudaMalloc come, are written to, and go.
void churn() {
  for (int i = 0; i < 8; ++i) {
    void* block = nullptr;
    MUST(cudaMalloc(&block, kBytes >> (i % 3)));
    MUST(cudaMemset(block, 0xEE, kBytes >> (i % 3)));
    MUST(cudaFree(block));
  }
}

}  // namespace

int main() {
  cudaStream_t stream = nullptr;
  MUST(cudaStreamCreate(&stream));
  cudaMemPool_t default_pool = nullptr;
  MUST(cudaDeviceGetDefaultMemPool(&default_pool, 0));
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = 0;
  cudaMemPool_t own_pool = nullptr;
  MUST(cudaMemPoolCreate(&own_pool, &properties));
  churn();
  std::vector<Memory> all(kRounds);
  for (int i = 0; i < kRounds; ++i) {
    Memory& memory = all[static_cast<size_t>(i)];
    MUST(cudaMallocAsync(&memory.of_default_pool, kBytes, stream));
    MUST(cudaMallocFromPoolAsync(&memory.of_own_pool, kBytes, own_pool, stream));
    MUST(cudaMallocManaged(&memory.managed, kBytes, cudaMemAttachGlobal));
    const CUDA_ARRAY_DESCRIPTOR shape{64, 64, CU_AD_FORMAT_UNSIGNED_INT8, 1};
    CHECK(cuArrayCreate(&memory.array, &shape) == CUDA_SUCCESS);
    MUST(cudaMallocHost(&memory.host, kBytes));
    MUST(cudaMemsetAsync(memory.of_default_pool, 10 + i, kBytes, stream));
    MUST(cudaMemsetAsync(memory.of_own_pool, 30 + i, kBytes, stream));
    MUST(cudaMemsetAsync(memory.managed, 50 + i, kBytes, stream));
    MUST(cudaMemsetAsync(memory.host, 70 + i, kBytes, stream));
    churn();
  }
  MUST(cudaStreamSynchronize(stream));
  print_used("default pool", default_pool);
  print_used("own pool", own_pool);
  for (int i = 0; i < kRounds; ++i) {
    const Memory& memory = all[static_cast<size_t>(i)];
    check(memory.of_default_pool, 10 + i);
    check(memory.of_own_pool, 30 + i);
    check(memory.managed, 50 + i);
    check(memory.host, 70 + i);
    MUST(cudaFreeAsync(memory.of_default_pool, stream));
    MUST(cudaFreeAsync(memory.of_own_pool, stream));
    MUST(cudaFree(memory.managed));
    MUST(cudaFreeHost(memory.host));
    CHECK(cuArrayDestroy(memory.array) == CUDA_SUCCESS);
  }
  MUST(cudaStreamSynchronize(stream));
  print_used("default pool", default_pool);
  print_used("own pool", own_pool);
  MUST(cudaMemPoolDestroy(own_pool));
  MUST(cudaStreamDestroy(stream));
  return 0;
}
