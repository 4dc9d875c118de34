// SPDX-License-Identifier: Apache-2.0
// The program's own cudaMallocAsync and the device's default pool (contracts 4, 5 and 12): what a
// pair costs, with a kernel and a wait and without; that idle memory counts as free, serves every
// other allocator and goes back; what the program reads of the pool; and that it has the last word
// on it.
#include <cuda.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "common/kernels.cuh"
#include "contract.h"

namespace {

using contract::fact;
using contract::kGiB;
using contract::kMiB;
using contract::verdict;
using gpu_test::Clock;

constexpr uint64_t kWords = 16 << 10;  // 64 KiB
constexpr size_t kMuch = 4 * kGiB;

cudaMemPool_t pool = nullptr;
cudaStream_t stream = nullptr;

uint64_t read(cudaMemPoolAttr attribute) {
  uint64_t value = 1;
  MUST(cudaMemPoolGetAttribute(pool, attribute, &value));
  return value;
}

uint64_t reserved() {
  return read(cudaMemPoolAttrReservedMemCurrent);
}

size_t free_bytes() {
  size_t free = 0;
  size_t total = 0;
  MUST(cudaMemGetInfo(&free, &total));
  return free;
}

void leave_idle(size_t bytes) {
  void* block = nullptr;
  MUST(cudaMallocAsync(&block, bytes, stream));
  stamp_u32<<<64, 256, 0, stream>>>(static_cast<uint32_t*>(block), kWords, 1);
  MUST(cudaGetLastError());
  MUST(cudaFreeAsync(block, stream));
  MUST(cudaStreamSynchronize(stream));
}

// Median of single pairs: malloc, kernel, free, wait.
double pair_with_wait(size_t bytes) {
  std::vector<double> times;
  for (int i = 0; i < 400; ++i) {
    uint32_t* block = nullptr;
    const auto begin = Clock::now();
    MUST(cudaMallocAsync(&block, bytes, stream));
    stamp_u32<<<64, 256, 0, stream>>>(block, kWords, 1);
    MUST(cudaFreeAsync(block, stream));
    MUST(cudaStreamSynchronize(stream));
    times.push_back(gpu_test::seconds_since(begin) * 1e6);
  }
  return gpu_test::median(times);
}

// Mean of pairs that nobody waits for, while some memory of the pool stays in use.
double pair_alone(int threads) {
  constexpr int kPairs = 20000;
  void* kept = nullptr;
  MUST(cudaMallocAsync(&kept, 3 * kMiB, stream));
  std::vector<std::thread> all;
  const auto begin = Clock::now();
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([threads] {
      cudaStream_t own = nullptr;
      MUST(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
      for (int pair = 0; pair < kPairs / threads; ++pair) {
        void* block = nullptr;
        MUST(cudaMallocAsync(&block, 64 << 10, own));
        MUST(cudaFreeAsync(block, own));
      }
      MUST(cudaStreamSynchronize(own));
      MUST(cudaStreamDestroy(own));
    });
  }
  for (std::thread& thread : all) thread.join();
  const double seconds = gpu_test::seconds_since(begin);
  MUST(cudaFreeAsync(kept, stream));
  MUST(cudaStreamSynchronize(stream));
  return seconds * 1e9 / (kPairs / threads);
}

void times() {
  leave_idle(kMiB);
  fact("pair_us=%.1f", pair_with_wait(64 << 10));
  fact("pair_16m_us=%.1f", pair_with_wait(16 * kMiB));
  fact("pair_1_thread_ns=%.0f", pair_alone(1));
  fact("pair_16_threads_ns=%.0f", pair_alone(16));
}

void reads() {
  uint64_t zero = 0;
  verdict(read(cudaMemPoolAttrReleaseThreshold) == 0, "the threshold reads 0");
  leave_idle(kMuch);
  verdict(read(cudaMemPoolAttrReleaseThreshold) == 0, "the threshold reads 0, with idle memory");
  verdict(read(cudaMemPoolAttrUsedMemCurrent) == 0, "nothing is in use");
  verdict(read(cudaMemPoolAttrUsedMemHigh) >= kMuch, "the highest use");
  fact("reserved_after_wait=%llu", static_cast<unsigned long long>(reserved()));
  const auto end = Clock::now() + std::chrono::seconds(12);
  while (reserved() != 0 && Clock::now() < end) usleep(50'000);
  fact("reserved_later=%llu", static_cast<unsigned long long>(reserved()));
  verdict(reserved() == 0, "idle memory goes back");
  verdict(read(cudaMemPoolAttrUsedMemHigh) >= kMuch, "the highest use, later");
  MUST(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &zero));
  fact("same.high_after_reset=%llu",
       static_cast<unsigned long long>(read(cudaMemPoolAttrUsedMemHigh)));
}

void others() {
  const size_t before = free_bytes();
  const size_t most = before / 4 * 3 / kMiB * kMiB;
  leave_idle(most);
  fact("bytes.free=%zu", free_bytes());
  void* block = nullptr;
  verdict(cudaMalloc(&block, most) == cudaSuccess, "cudaMalloc of idle memory");
  if (block != nullptr) MUST(cudaFree(block));
  leave_idle(most);
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  const CUresult created = cuMemCreate(&handle, most / (2 * kMiB) * (2 * kMiB), &wanted, 0);
  verdict(created == CUDA_SUCCESS, "cuMemCreate of idle memory");
  if (created == CUDA_SUCCESS) MUST(cuMemRelease(handle));
  leave_idle(most);
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  cudaMemPool_t other = nullptr;
  MUST(cudaMemPoolCreate(&other, &properties));
  block = nullptr;
  verdict(cudaMallocFromPoolAsync(&block, most, other, stream) == cudaSuccess,
          "another pool gets idle memory");
  if (block != nullptr) MUST(cudaFreeAsync(block, stream));
  MUST(cudaStreamSynchronize(stream));
  MUST(cudaMemPoolDestroy(other));
  // Freed behind work that is pending: what counts as free can be had.
  block = nullptr;
  MUST(cudaMallocAsync(&block, most, stream));
  spin_ns<<<1, 1, 0, stream>>>(200'000'000);
  MUST(cudaFreeAsync(block, stream));
  const size_t available = free_bytes();
  block = nullptr;
  verdict(cudaMalloc(&block, available - 128 * kMiB) == cudaSuccess, "what counts as free");
  if (block != nullptr) MUST(cudaFree(block));
  cudaGetLastError();
  MUST(cudaDeviceSynchronize());
}

// What lies behind work is refused, as without cupool, and nobody waits for that work.
void pending() {
  const size_t most = free_bytes() / 4 * 3 / kMiB * kMiB;
  leave_idle(kMiB);
  void* block = nullptr;
  MUST(cudaMallocAsync(&block, most, stream));
  spin_ns<<<1, 1, 0, stream>>>(2'000'000'000);
  MUST(cudaFreeAsync(block, stream));
  const auto begin = Clock::now();
  block = nullptr;
  fact("same.pending_malloc=%d", static_cast<int>(cudaMalloc(&block, most)));
  verdict(gpu_test::seconds_since(begin) < 1, "it is answered at once");
  if (block != nullptr) MUST(cudaFree(block));
  cudaGetLastError();
  MUST(cudaDeviceSynchronize());
}

// A small block in use in each step: a trim gives next to nothing back, and as little is free.
void fragments() {
  constexpr int kSteps = 100;
  std::vector<void*> small(kSteps);
  std::vector<void*> large(kSteps);
  for (int i = 0; i < kSteps; ++i) {
    MUST(cudaMallocAsync(&small[i], kMiB, stream));
    MUST(cudaMallocAsync(&large[i], 31 * kMiB, stream));
  }
  MUST(cudaStreamSynchronize(stream));
  const size_t before = free_bytes();
  for (void* block : large) MUST(cudaFreeAsync(block, stream));
  MUST(cudaStreamSynchronize(stream));
  const size_t available = free_bytes();
  fact("fragments_counted_free=%zu", available - std::min(before, available));
  void* block = nullptr;
  verdict(cudaMalloc(&block, available - 128 * kMiB) == cudaSuccess,
          "what counts as free beside fragments");
  if (block != nullptr) MUST(cudaFree(block));
  cudaGetLastError();
  for (void* each : small) MUST(cudaFreeAsync(each, stream));
  MUST(cudaStreamSynchronize(stream));
}

// Does a reset of the device change the pool? Recorded, for docs/design.md.
void reset() {
  leave_idle(kMuch);
  MUST(cudaDeviceReset());
  cudaMemPool_t again = nullptr;
  MUST(cudaDeviceGetDefaultMemPool(&again, 0));
  fact("pool_is_the_same_after_reset=%d", again == pool);
  pool = again;
  fact("reserved_after_reset=%llu", static_cast<unsigned long long>(reserved()));
  verdict(reserved() == 0, "a reset leaves nothing idle");
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  leave_idle(kMuch);
  fact("reserved_after_reset_and_wait=%llu", static_cast<unsigned long long>(reserved()));
  verdict(read(cudaMemPoolAttrReleaseThreshold) == 0, "the threshold reads 0 after a reset");
}

void owned() {
  uint64_t threshold = 2 * kGiB;
  leave_idle(kMuch);
  MUST(cudaMemPoolTrimTo(pool, 0));
  verdict(reserved() == 0, "a trim gives all back");
  leave_idle(kMuch);
  verdict(reserved() == 0, "a trimmed pool is the driver's");
  MUST(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  verdict(read(cudaMemPoolAttrReleaseThreshold) == threshold, "the threshold reads as set");
  leave_idle(kGiB);
  sleep(7);
  verdict(reserved() >= kGiB, "a threshold of the program's holds");
}

}  // namespace

int main(int argc, char** argv) {
  MUST(cudaSetDevice(0));
  MUST(cudaDeviceGetDefaultMemPool(&pool, 0));
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  if (contract::asked(argc, argv, "times")) times();
  if (contract::asked(argc, argv, "reads")) reads();
  if (contract::asked(argc, argv, "others")) others();
  if (contract::asked(argc, argv, "pending")) pending();
  if (contract::asked(argc, argv, "fragments")) fragments();
  if (contract::asked(argc, argv, "reset")) reset();
  if (contract::asked(argc, argv, "owned")) owned();
  return contract::exit_code();
}
