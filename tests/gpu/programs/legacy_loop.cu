// SPDX-License-Identifier: Apache-2.0
// A legacy program: several threads, each with several streams, allocate, launch kernels and free
// at once, while the last kernel still writes. Linked once with the static and once with the shared
// libcudart. A block handed out too early shows as foreign words, counted by the GPU.
// Arguments: threads=N streams=N iterations=N
#include <cuda_runtime.h>

#include <atomic>
#include <thread>

#include "common/gpu_test.h"
#include "common/kernels.cuh"

namespace {

constexpr uint64_t kWords[] = {128,     1000,    16384,   1 << 18, 300007,
                               1 << 19, 1 << 20, 3 << 19, 1 << 21};
constexpr int kWordsCount = static_cast<int>(sizeof(kWords) / sizeof(kWords[0]));

std::atomic<uint64_t> mallocs{0};
std::atomic<uint64_t> frees{0};
std::atomic<uint64_t> wrong_words{0};
std::atomic<uint64_t> checksum{0};

template <typename T>
T* allocate(uint64_t count) {
  void* p = nullptr;
  MUST(cudaMalloc(&p, count * sizeof(T)));
  ++mallocs;
  return static_cast<T*>(p);
}

void release(void* p) {
  MUST(cudaFree(p));
  ++frees;
}

void work(int thread_index, int stream_count, int iterations) {
  std::vector<cudaStream_t> streams(stream_count);
  for (cudaStream_t& stream : streams) {
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  uint64_t* mismatches = allocate<uint64_t>(1);
  MUST(cudaMemset(mismatches, 0, sizeof(uint64_t)));
  MUST(cudaDeviceSynchronize());
  uint64_t sum = 0;
  for (int i = 0; i < iterations; ++i) {
    const uint64_t count = kWords[(i + 3 * thread_index) % kWordsCount];
    const uint32_t value = 0x40000000u + static_cast<uint32_t>(thread_index * 1000003 + i);
    const cudaStream_t stream = streams[i % stream_count];
    uint32_t* source = allocate<uint32_t>(count);
    uint32_t* copy = allocate<uint32_t>(count);
    stamp_u32<<<256, 256, 0, stream>>>(source, count, value);
    copy_u32<<<256, 256, 0, stream>>>(copy, source, count);
    spin_ns<<<1, 1, 0, stream>>>(20000);
    check_u32<<<256, 256, 0, stream>>>(source, count, value, mismatches);
    check_u32<<<256, 256, 0, stream>>>(copy, count, value, mismatches);
    if (i % 16 == 0) {
      uint32_t sample = 0;
      MUST(cudaMemcpyAsync(&sample, copy + count / 2, sizeof(sample), cudaMemcpyDeviceToHost,
                           stream));
      MUST(cudaStreamSynchronize(stream));
      sum += sample;
    }
    // Still to be done when the memory is freed: must reach no later owner (contract 2).
    stamp_u32<<<256, 256, 0, stream>>>(source, count, 0xDEADBEEFu);
    stamp_u32<<<256, 256, 0, stream>>>(copy, count, 0xDEADBEEFu);
    MUST(cudaGetLastError());
    release(source);
    release(copy);
  }
  for (cudaStream_t& stream : streams) MUST(cudaStreamSynchronize(stream));
  uint64_t wrong = 0;
  MUST(cudaMemcpy(&wrong, mismatches, sizeof(wrong), cudaMemcpyDeviceToHost));
  release(mismatches);
  for (cudaStream_t& stream : streams) MUST(cudaStreamDestroy(stream));
  wrong_words += wrong;
  checksum += sum;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = static_cast<int>(gpu_test::number(argc, argv, "threads", 4));
  const int streams = static_cast<int>(gpu_test::number(argc, argv, "streams", 2));
  const int iterations = static_cast<int>(gpu_test::number(argc, argv, "iterations", 400));
  release(allocate<uint32_t>(1));  // initialisation stays out of the time
  const auto begin = gpu_test::Clock::now();
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; ++i) workers.emplace_back(work, i, streams, iterations);
  for (std::thread& worker : workers) worker.join();
  const double seconds = gpu_test::seconds_since(begin);
  std::printf("result wrong_words=%" PRIu64 " checksum=%" PRIu64 "\n", wrong_words.load(),
              checksum.load());
  gpu_test::print_counts(mallocs, frees);
  std::printf("time ms_per_iteration=%.6f\n", seconds * 1e3 / iterations);
  return wrong_words == 0 ? 0 : 3;
}
