// SPDX-License-Identifier: Apache-2.0
// The program's own cudaMallocAsync, served by cupool (CUPOOL_ASYNC=serve): what a pair costs, and
// whether memory is ever handed out too early.
//   async_serve pairs [keep=1]           ns a pair, on 1 and 16 threads with a stream each, with a
//                                        kernel between and without, and on one thread's 8 streams;
//                                        ns of asking how much of the pool is in use;
//                                        keep=1: the program has its pool keep its memory itself;
//                                        pause_ns=N: other work of the host behind each call
//   async_serve proof [budget=SECONDS]   many threads and streams, random sizes: every block is
//                                        stamped and checked by kernels in the order of its streams
//   async_serve full                     on a device with little room, beside a kernel of seconds:
//                                        what one stream has freed is wanted at once by itself,
//                                        and, once it is done, by another one, also when it has
//                                        been destroyed since, cudaMalloc and cudaMemGetInfo
// One line of JSON. proof ends with 1 if a check found a foreign word, full if something was
// refused or had to wait.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "common/gpu_test.h"
#include "common/kernels.cuh"

namespace {

using gpu_test::Clock;

constexpr size_t kPairBytes = 64 << 10;
double pause_seconds = 0;

void pause_a_moment() {
  if (pause_seconds == 0) return;
  const auto begin = Clock::now();
  while (gpu_test::seconds_since(begin) < pause_seconds) {
  }
}

cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

// Mean of `pairs` pairs on each of some threads, of all threads at the same time.
double pair_ns(int threads, int pairs, bool kernel, int streams_of_each = 1) {
  std::atomic<int> ready{0};
  std::vector<double> means(threads);
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([&, i] {
      std::vector<cudaStream_t> streams;
      for (int s = 0; s < streams_of_each; ++s) streams.push_back(make_stream());
      const auto pair = [&](int number) {
        cudaStream_t stream = streams[number % streams_of_each];
        uint32_t* block = nullptr;
        MUST(cudaMallocAsync(&block, kPairBytes, stream));
        pause_a_moment();
        if (kernel) stamp_u32<<<1, 32, 0, stream>>>(block, 32, number);
        MUST(cudaFreeAsync(block, stream));
        pause_a_moment();
      };
      for (int number = 0; number < 100; ++number) pair(number);
      for (cudaStream_t stream : streams) MUST(cudaStreamSynchronize(stream));
      for (++ready; ready.load() != threads;) {
      }
      const auto begin = Clock::now();
      for (int number = 0; number < pairs; ++number) pair(number);
      means[i] = gpu_test::seconds_since(begin) * 1e9 / pairs;
      for (cudaStream_t stream : streams) {
        MUST(cudaStreamSynchronize(stream));
        MUST(cudaStreamDestroy(stream));
      }
    });
  }
  for (std::thread& thread : all) thread.join();
  return gpu_test::median(means);
}

// What the program learns of its pool before each allocation, as CuPy's asynchronous pool does.
double used_ns(cudaMemPool_t pool) {
  constexpr int kTimes = 100000;
  uint64_t used = 0;
  const auto begin = Clock::now();
  for (int i = 0; i < kTimes; ++i) {
    MUST(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  }
  return gpu_test::seconds_since(begin) * 1e9 / kTimes;
}

void pairs(bool keep) {
  cudaMemPool_t pool = nullptr;
  MUST(cudaDeviceGetDefaultMemPool(&pool, 0));
  if (keep) {
    uint64_t everything = UINT64_MAX;
    MUST(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &everything));
  }
  uint32_t* kept = nullptr;  // so that the pool keeps its memory in each run
  cudaStream_t stream = make_stream();
  MUST(cudaMallocAsync(&kept, 3 << 20, stream));
  std::printf(
      "{\"pairs_1_ns\": %.0f, \"pairs_16_ns\": %.0f, \"kernel_1_ns\": %.0f, "
      "\"kernel_16_ns\": %.0f, \"streams_8_ns\": %.0f, \"used_ns\": %.0f}\n",
      pair_ns(1, 200000, false), pair_ns(16, 5000, false), pair_ns(1, 20000, true),
      pair_ns(16, 2000, true), pair_ns(1, 200000, false, 8), used_ns(pool));
  MUST(cudaFreeAsync(kept, stream));
  MUST(cudaStreamSynchronize(stream));
}

struct Live {
  uint32_t* block;
  uint64_t words;
  uint32_t value;
  int stream;
};

// One thread with streams of its own. A block is stamped where it was allocated, checked later in
// that stream or, ordered by an event, in another, and freed there. Streams come and go.
void work(int thread, Clock::time_point end, uint64_t* mismatches, std::atomic<uint64_t>* blocks) {
  constexpr int kStreams = 4;
  uint64_t random = 0x9e3779b97f4a7c15u * (thread + 1);
  const auto below = [&](uint64_t bound) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return random % bound;
  };
  cudaStream_t streams[kStreams];
  for (cudaStream_t& stream : streams) stream = make_stream();
  if (thread % 4 == 0) streams[0] = cudaStreamPerThread;
  if (thread % 4 == 1) streams[0] = cudaStreamLegacy;
  cudaEvent_t event = nullptr;
  MUST(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  std::vector<Live> live;
  uint32_t value = static_cast<uint32_t>(thread) << 24;
  while (Clock::now() < end) {
    if (live.size() < 24 && below(2) == 0) {
      Live each{nullptr, 1 + below(uint64_t{1} << (4 + below(16))), ++value,
                static_cast<int>(below(kStreams))};
      if (cudaMallocAsync(&each.block, each.words * 4, streams[each.stream]) != cudaSuccess) {
        cudaGetLastError();
        continue;
      }
      if (below(8) == 0) spin_ns<<<1, 1, 0, streams[each.stream]>>>(below(200'000));
      stamp_u32<<<8, 256, 0, streams[each.stream]>>>(each.block, each.words, each.value);
      live.push_back(each);
      blocks->fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    if (live.empty()) continue;
    const size_t index = below(live.size());
    Live each = live[index];
    live[index] = live.back();
    live.pop_back();
    if (below(3) == 0) {
      const int other = static_cast<int>(below(kStreams));
      MUST(cudaEventRecord(event, streams[each.stream]));
      MUST(cudaStreamWaitEvent(streams[other], event, 0));
      each.stream = other;
    }
    cudaStream_t stream = streams[each.stream];
    check_u32<<<8, 256, 0, stream>>>(each.block, each.words, each.value, mismatches);
    if (below(40) == 0) {
      MUST(cudaStreamSynchronize(stream));
      MUST(cudaFree(each.block));
    } else {
      MUST(cudaFreeAsync(each.block, stream));
    }
    if (below(500) == 0) {
      // What is live was stamped in the stream that goes, or is behind it by the wait.
      const int gone = 1 + static_cast<int>(below(kStreams - 1));
      const bool used = std::any_of(live.begin(), live.end(),
                                    [&](const Live& block) { return block.stream == gone; });
      if (used) continue;
      MUST(cudaStreamDestroy(streams[gone]));
      streams[gone] = make_stream();
    }
    if (below(2000) == 0) MUST(cudaDeviceSynchronize());
  }
  for (const Live& each : live) {
    check_u32<<<8, 256, 0, streams[each.stream]>>>(each.block, each.words, each.value, mismatches);
    MUST(cudaFreeAsync(each.block, streams[each.stream]));
  }
  MUST(cudaDeviceSynchronize());
}

bool proof(double budget) {
  uint64_t* mismatches = nullptr;
  MUST(cudaMalloc(&mismatches, sizeof *mismatches));
  MUST(cudaMemset(mismatches, 0, sizeof *mismatches));
  std::atomic<uint64_t> blocks{0};
  const auto end = Clock::now() + std::chrono::milliseconds(static_cast<long>(budget * 1000));
  std::vector<std::thread> all;
  for (int i = 0; i < 16; ++i) all.emplace_back(work, i, end, mismatches, &blocks);
  for (std::thread& thread : all) thread.join();
  uint64_t wrong = 0;
  MUST(cudaMemcpy(&wrong, mismatches, sizeof wrong, cudaMemcpyDeviceToHost));
  std::printf("{\"blocks\": %llu, \"foreign_words\": %llu}\n",
              static_cast<unsigned long long>(blocks.load()),
              static_cast<unsigned long long>(wrong));
  return wrong == 0;
}

// The driver serves the first calls of a stream.
cudaStream_t make_served_stream() {
  const cudaStream_t stream = make_stream();
  uint32_t* block = nullptr;
  for (int i = 0; i < 2; ++i) {
    MUST(cudaMallocAsync(&block, 1 << 20, stream));
    MUST(cudaFreeAsync(block, stream));
  }
  return stream;
}

// Each way has a new kernel to wait beside, and blocks that are too small for what is wanted.
bool full() {
  constexpr size_t kGiB = size_t{1} << 30;
  constexpr uint64_t kBusyNs = 3'000'000'000;
  constexpr double kAtOnce = 1;
  const cudaStream_t busy = make_stream();
  const cudaStream_t lasts = make_served_stream();
  const cudaStream_t second = make_served_stream();
  spin_ns<<<1, 1, 0, busy>>>(1000);
  MUST(cudaDeviceSynchronize());
  size_t room = 0;
  size_t total = 0;
  MUST(cudaMemGetInfo(&room, &total));
  void* filler = nullptr;
  MUST(cudaMalloc(&filler, room - 8 * kGiB));
  bool all = true;
  std::printf("{");
  for (const char* way : {"own", "async", "gone", "malloc", "info"}) {
    const bool own = way[0] == 'o';
    const bool gone = way[0] == 'g';
    const size_t bytes = (own ? 5 : 7) * kGiB;  // more than was freed: some lies free
    const cudaStream_t first = gone ? make_served_stream() : lasts;
    const cudaStream_t wants = own ? first : second;
    uint32_t* blocks[3] = {};
    for (uint32_t*& each : blocks) {
      MUST(cudaMallocAsync(&each, 2 * kGiB, first));
      stamp_u32<<<64, 256, 0, first>>>(each, 2 * kGiB / sizeof(uint32_t), 1);
    }
    spin_ns<<<1, 1, 0, own ? first : busy>>>(kBusyNs);
    for (uint32_t* each : blocks) MUST(cudaFreeAsync(each, first));
    if (!own) MUST(cudaStreamSynchronize(first));
    if (gone) MUST(cudaStreamDestroy(first));
    const auto begin = Clock::now();
    cudaError_t answer = cudaSuccess;
    uint32_t* wanted = nullptr;
    if (own || gone || way[0] == 'a') answer = cudaMallocAsync(&wanted, bytes, wants);
    if (way[0] == 'm') answer = cudaMalloc(&wanted, bytes);
    if (way[0] == 'i') MUST(cudaMemGetInfo(&room, &total));
    const double seconds = gpu_test::seconds_since(begin);
    if (way[0] == 'i' && room < bytes) answer = cudaErrorMemoryAllocation;
    std::printf("%s\"%s\": {\"error\": %d, \"ms\": %.1f, \"busy\": %s}", own ? "" : ", ", way,
                static_cast<int>(answer), seconds * 1e3,
                cudaStreamQuery(own ? first : busy) == cudaErrorNotReady ? "true" : "false");
    all = all && answer == cudaSuccess && seconds < kAtOnce;
    cudaGetLastError();
    if (wanted != nullptr) {
      MUST(cudaMemsetAsync(wanted, 2, bytes, wants));
      MUST(cudaFreeAsync(wanted, wants));
    }
    MUST(cudaDeviceSynchronize());
  }
  std::printf("}\n");
  MUST(cudaFree(filler));
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  double budget = 20;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "budget=", 7) == 0) budget = std::atof(argv[i] + 7);
  }
  MUST(cudaSetDevice(0));
  if (argc > 1 && std::strcmp(argv[1], "proof") == 0) return proof(budget) ? 0 : 1;
  if (argc > 1 && std::strcmp(argv[1], "full") == 0) return full() ? 0 : 1;
  pause_seconds = static_cast<double>(gpu_test::number(argc, argv, "pause_ns", 0)) * 1e-9;
  pairs(gpu_test::number(argc, argv, "keep", 0) != 0);
  return 0;
}
