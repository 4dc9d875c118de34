// SPDX-License-Identifier: Apache-2.0
// Kernel, then cudaFree: threads with non-blocking streams allocate, run a kernel of about 20 us on
// the block, check it and free it at once. Legacy cudaFree waits for the whole GPU each time; what
// remains under cupool is the price of getting it right (the table in docs/measurements).
// Arguments: threads=N streams=N iterations=N repeats=N
#include <cuda_runtime.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "common/gpu_test.h"
#include "common/kernels.cuh"

namespace {

constexpr uint64_t kSmallest = 16 << 10;  // words: 64 KiB
constexpr int kSizes = 7;                 // doubling, up to 4 MiB
constexpr uint64_t kKernelNs = 20000;

// Writes the block over and over: the last writes come as late as the kernel's time allows.
__global__ void keep_stamping(uint32_t* words, uint64_t count, uint32_t value,
                              uint64_t nanoseconds) {
  const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  uint64_t begin = 0;
  uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += stride) {
      *static_cast<volatile uint32_t*>(words + i) = value;
    }
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

// All start together, so that creating threads and streams is not in the time.
class Start {
 public:
  explicit Start(int threads) : missing_(threads) {}
  void arrive_and_wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (--missing_ == 0) {
      begin_ = gpu_test::Clock::now();
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return missing_ == 0; });
  }
  gpu_test::Clock::time_point begin() const { return begin_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int missing_;
  gpu_test::Clock::time_point begin_;
};

void work(int index, int stream_count, int iterations, uint64_t* mismatches, Start* start,
          gpu_test::Clock::time_point* end) {
  std::vector<cudaStream_t> streams(stream_count);
  for (cudaStream_t& stream : streams) {
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  start->arrive_and_wait();
  for (int i = 0; i < iterations; ++i) {
    const uint64_t count = kSmallest << ((i + index) % kSizes);
    const uint32_t value = static_cast<uint32_t>(index) << 24 | static_cast<uint32_t>(i + 1);
    const cudaStream_t stream = streams[i % stream_count];
    void* block = nullptr;
    MUST(cudaMalloc(&block, count * sizeof(uint32_t)));
    uint32_t* words = static_cast<uint32_t*>(block);
    keep_stamping<<<32, 256, 0, stream>>>(words, count, value, kKernelNs);
    check_u32<<<256, 256, 0, stream>>>(words, count, value, mismatches);
    MUST(cudaGetLastError());
    MUST(cudaFree(words));
  }
  for (const cudaStream_t stream : streams) MUST(cudaStreamSynchronize(stream));
  *end = gpu_test::Clock::now();
  for (const cudaStream_t stream : streams) MUST(cudaStreamDestroy(stream));
}

double pass(int threads, int streams, int iterations, uint64_t* mismatches) {
  Start start(threads);
  std::vector<gpu_test::Clock::time_point> ends(threads);
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back(work, i, streams, iterations, mismatches, &start, &ends[i]);
  }
  for (std::thread& worker : workers) worker.join();
  const auto last = *std::max_element(ends.begin(), ends.end());
  return std::chrono::duration<double, std::milli>(last - start.begin()).count();
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = static_cast<int>(gpu_test::number(argc, argv, "threads", 4));
  const int streams = static_cast<int>(gpu_test::number(argc, argv, "streams", 2));
  const int iterations = static_cast<int>(gpu_test::number(argc, argv, "iterations", 400));
  const int repeats = static_cast<int>(gpu_test::number(argc, argv, "repeats", 3));
  uint64_t* mismatches = nullptr;
  MUST(cudaMalloc(&mismatches, sizeof(uint64_t)));
  MUST(cudaMemset(mismatches, 0, sizeof(uint64_t)));
  pass(1, 1, kSizes, mismatches);  // loads the kernels
  MUST(cudaMemset(mismatches, 0, sizeof(uint64_t)));
  MUST(cudaDeviceSynchronize());
  // The first pass makes the pool grow; a program that runs on pays for that once.
  const double first = pass(threads, streams, iterations, mismatches);
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    times.push_back(pass(threads, streams, iterations, mismatches));
  }
  uint64_t wrong = 0;
  MUST(cudaMemcpy(&wrong, mismatches, sizeof(wrong), cudaMemcpyDeviceToHost));
  MUST(cudaFree(mismatches));
  std::printf("result foreign_words=%" PRIu64 "\n", wrong);
  std::printf("time first_ms=%.3f total_ms=%.3f us_per_iteration=%.3f\n", first,
              gpu_test::median(times), gpu_test::median(times) * 1e3 / iterations);
  return wrong == 0 ? 0 : 3;
}
