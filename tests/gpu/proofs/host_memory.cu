// SPDX-License-Identifier: Apache-2.0
// Page-locked host memory (docs/design.md, Page-locked host memory): what a pair of cudaMallocHost
// and cudaFreeHost costs, and whether memory is ever handed out while a kernel or copy still uses
// it. The next owner is the host, which writes at once; a word that is not its own afterwards is
// counted. Runs without cupool too.
//
//   host_memory [budget=SECONDS] [threads=N] [part=all|pairs|proofs]
//     time pair_BYTES_THREADS_ns=N      median over rounds of the mean of one pair, for each thread
//     result NAME foreign_words=N       0 in every mode
//     info NAME rounds=N
#include <cuda_runtime.h>

#include <atomic>
#include <functional>
#include <random>
#include <string>
#include <thread>

#include "common/gpu_test.h"
#include "common/kernels.cuh"

namespace {

using gpu_test::Clock;

double budget = 60;
Clock::time_point begin;

bool over(double share) {
  return gpu_test::seconds_since(begin) > budget * share;
}

void* allocate(size_t bytes) {
  void* memory = nullptr;
  MUST(cudaMallocHost(&memory, bytes));
  return memory;
}

// The mean of a pair in nanoseconds, of `pairs` in turn.
double pairs(size_t bytes, long count) {
  const auto start = Clock::now();
  for (long i = 0; i < count; ++i) MUST(cudaFreeHost(allocate(bytes)));
  return gpu_test::seconds_since(start) * 1e9 / static_cast<double>(count);
}

// As many pairs as take a hundredth of a second, or one.
long enough_pairs(size_t bytes) {
  const double one = pairs(bytes, 1);
  return std::max(1L, std::min(100000L, static_cast<long>(1e7 / one)));
}

void time_pairs(size_t bytes, int threads) {
  for (int i = 0; i < 3; ++i) pairs(bytes, 1);
  const long count = enough_pairs(bytes);
  std::vector<double> means;
  for (int round = 0; round < 9; ++round) {
    std::vector<double> of_thread(static_cast<size_t>(threads));
    std::atomic<int> ready{0};
    std::vector<std::thread> all;
    for (int i = 0; i < threads; ++i) {
      all.emplace_back([&, i] {
        MUST(cudaSetDevice(0));
        pairs(bytes, 2);
        ready.fetch_add(1);
        while (ready.load() != threads) {
        }
        of_thread[static_cast<size_t>(i)] = pairs(bytes, count);
      });
    }
    for (std::thread& thread : all) thread.join();
    means.push_back(gpu_test::median(of_thread));
    if (means.front() > 1e6 && round == 2) break;
  }
  std::printf("time pair_%zu_%d_ns=%.1f\n", bytes, threads, gpu_test::median(means));
  std::fflush(stdout);
}

// Finds its target in memory, where no launch shows it.
__global__ void write_hidden(uint32_t* const* target, uint64_t count, uint32_t value,
                             uint64_t nanoseconds) {
  uint64_t first = 0;
  uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(first));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - first < nanoseconds);
  for (uint64_t i = threadIdx.x; i < count; i += blockDim.x) (*target)[i] = value;
}

uint64_t foreign_words(const uint32_t* words, uint64_t count, uint32_t own) {
  uint64_t foreign = 0;
  const volatile uint32_t* const seen = words;
  for (uint64_t i = 0; i < count; ++i) foreign += seen[i] != own ? 1 : 0;
  return foreign;
}

// `work(words, count)` submits GPU work on the memory to `stream`; then the memory is freed, and
// more of its size is allocated, which the host fills and looks at when all work is done.
uint64_t rounds_of(const char* name, double share, cudaStream_t stream,
                   const std::function<void(uint32_t*, uint64_t)>& work) {
  constexpr size_t kSizes[] = {4096, 65536, 1 << 20, 5 << 20};
  std::mt19937 random(7);
  uint64_t foreign = 0;
  long rounds = 0;
  long same = 0;
  while (!over(share) && rounds < 2000) {
    const size_t bytes = kSizes[random() % 4];
    const uint64_t count = bytes / 4;
    auto* const first = static_cast<uint32_t*>(allocate(bytes));
    work(first, count);
    MUST(cudaFreeHost(first));
    std::vector<uint32_t*> next;
    for (int i = 0; i < 4; ++i) {
      next.push_back(static_cast<uint32_t*>(allocate(bytes)));
      same += next.back() == first;
      std::fill_n(next.back(), count, 0x11111111u * static_cast<uint32_t>(i + 1));
    }
    if (random() % 2 == 0) MUST(cudaStreamSynchronize(stream));
    for (int i = 0; i < 4; ++i) {
      foreign += foreign_words(next[static_cast<size_t>(i)], count,
                               0x11111111u * static_cast<uint32_t>(i + 1));
    }
    MUST(cudaStreamSynchronize(stream));
    for (int i = 0; i < 4; ++i) {
      foreign += foreign_words(next[static_cast<size_t>(i)], count,
                               0x11111111u * static_cast<uint32_t>(i + 1));
      MUST(cudaFreeHost(next[static_cast<size_t>(i)]));
    }
    ++rounds;
  }
  std::printf("result %s foreign_words=%llu\n", name, static_cast<unsigned long long>(foreign));
  std::printf("info %s rounds=%ld same_memory=%ld\n", name, rounds, same);
  std::fflush(stdout);
  return foreign;
}

uint64_t prove() {
  uint64_t foreign = 0;
  cudaStream_t stream = nullptr;
  uint32_t** target = nullptr;
  uint32_t* words = nullptr;
  constexpr size_t kMost = 5 << 20;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MUST(cudaMalloc(&target, sizeof *target));
  MUST(cudaMalloc(&words, kMost));
  stamp_u32<<<64, 256, 0, stream>>>(words, kMost / 4, 0xbadbad00u);
  foreign += rounds_of("hidden_kernel", 0.6, stream, [&](uint32_t* at, uint64_t count) {
    MUST(cudaMemcpyAsync(target, &at, sizeof at, cudaMemcpyHostToDevice, stream));
    MUST(cudaStreamSynchronize(stream));
    write_hidden<<<1, 256, 0, stream>>>(target, count, 0xbadbad01u, 300000);
  });
  foreign += rounds_of("kernel", 0.7, stream, [&](uint32_t* at, uint64_t count) {
    spin_ns<<<1, 1, 0, stream>>>(300000);
    stamp_u32<<<16, 256, 0, stream>>>(at, count, 0xbadbad02u);
  });
  foreign += rounds_of("device_to_host", 0.8, stream, [&](uint32_t* at, uint64_t count) {
    spin_ns<<<1, 1, 0, stream>>>(300000);
    MUST(cudaMemcpyAsync(at, words, count * 4, cudaMemcpyDeviceToHost, stream));
  });
  // The copy must read what was there before the free.
  uint64_t* mismatches = nullptr;
  MUST(cudaMalloc(&mismatches, sizeof *mismatches));
  MUST(cudaMemset(mismatches, 0, sizeof *mismatches));
  foreign += rounds_of("host_to_device", 0.9, stream, [&](uint32_t* at, uint64_t count) {
    std::fill_n(at, count, 0x900d900du);
    spin_ns<<<1, 1, 0, stream>>>(300000);
    MUST(cudaMemcpyAsync(words, at, count * 4, cudaMemcpyHostToDevice, stream));
    check_u32<<<16, 256, 0, stream>>>(words, count, 0x900d900du, mismatches);
  });
  uint64_t wrong = 0;
  MUST(cudaMemcpy(&wrong, mismatches, sizeof wrong, cudaMemcpyDeviceToHost));
  std::printf("result copied foreign_words=%llu\n", static_cast<unsigned long long>(wrong));
  MUST(cudaFree(mismatches));
  MUST(cudaFree(words));
  MUST(cudaFree(target));
  return foreign + wrong;
}

}  // namespace

int main(int argc, char** argv) {
  budget = static_cast<double>(gpu_test::number(argc, argv, "budget", 60));
  const int threads = static_cast<int>(gpu_test::number(argc, argv, "threads", 16));
  std::string part = "all";
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "part=", 5) == 0) part = argv[i] + 5;
  }
  MUST(cudaSetDevice(0));
  void* block = nullptr;
  MUST(cudaMalloc(&block, 4096));
  MUST(cudaFree(block));
  begin = Clock::now();
  uint64_t foreign = 0;
  if (part != "proofs") {
    for (const size_t bytes : {4096, 65536, 1 << 20, 16 << 20, 256 << 20}) {
      for (const int with : {1, threads}) {
        if (over(0.5)) break;
        time_pairs(bytes, with);
      }
    }
  }
  if (part != "pairs") {
    if (part == "proofs") begin = Clock::now();
    foreign = prove();
  }
  return foreign == 0 ? 0 : 3;
}
