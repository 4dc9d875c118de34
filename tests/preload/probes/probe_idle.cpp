// SPDX-License-Identifier: Apache-2.0
// A program that leaves memory idle, for CUPOOL_DECAY_MS and CUPOOL_PREALLOC. What
// cupool holds is asked by its C interface where it is there. mode= leave (frees nearly everything,
// and waits until it is gone), crowded (the same until most of it is gone), thread (another thread
// does that and sleeps), pairs (needs the same blocks again and again), reserved (waits until
// CUPOOL_PREALLOC, 512 MiB, is reserved), lane (as leave, but goes on working in one lane), twice
// (frees the same again and again), requests (needs as much again and again), stay (frees
// everything and sleeps for a while).
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cupool/cupool.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "probe.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMiB = 1 << 20;
constexpr auto kPatience = std::chrono::seconds(20);

cupool_figures figures() {
  cupool_figures now{};
  now.size = sizeof now;
  CHECK(cupool_snapshot(0, &now) == CUPOOL_OK);
  return now;
}

template <typename Condition>
void wait_until(const Condition& condition) {
  if (cupool_snapshot == nullptr) return;
  const auto end = Clock::now() + kPatience;
  while (!condition(figures())) {
    CHECK(Clock::now() < end);
    usleep(2'000);
  }
}

// Large and small blocks, so that both pools have some.
std::vector<void*> allocate_much() {
  std::vector<void*> blocks;
  for (int i = 0; i < 400; ++i) MUST(cudaMalloc(&blocks.emplace_back(), 64 << 10));
  for (int i = 0; i < 24; ++i) MUST(cudaMalloc(&blocks.emplace_back(), 16 * kMiB));
  return blocks;
}

void free_all(const std::vector<void*>& blocks) {
  for (void* block : blocks) MUST(cudaFree(block));
}

void leave() {
  void* kept = nullptr;
  MUST(cudaMalloc(&kept, 3 * kMiB));
  free_all(allocate_much());
  // What is left: the block, and what the driver cannot take out of its chunk.
  wait_until([](const cupool_figures& now) {
    return now.held_bytes <= 4 * kMiB && now.pool_reserved_bytes <= 32 * kMiB;
  });
  free_all(allocate_much());
  MUST(cudaFree(kept));
}

void crowded() {
  free_all(allocate_much());
  wait_until([](const cupool_figures& now) { return now.pool_reserved_bytes <= 256 * kMiB; });
}

// One stream's work all the time, so that the process is in one lane. A thread that goes on keeps
// some memory for itself.
void lane() {
  CUmodule module = nullptr;
  CUfunction spin = nullptr;
  uint64_t ns = 1'000;
  void* arguments[] = {&ns};
  MUST(cudaFree(nullptr));
  MUST(cuModuleLoadData(&module, ""));
  MUST(cuModuleGetFunction(&spin, module, "spin_ns"));
  const auto work = [&] {
    MUST(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, CU_STREAM_LEGACY, arguments, nullptr));
  };
  const auto pair = [&] {
    void* block = nullptr;
    MUST(cudaMalloc(&block, 64 << 10));
    work();
    MUST(cudaFree(block));
  };
  for (int i = 0; i < 100; ++i) pair();
  const std::vector<void*> blocks = allocate_much();
  work();
  free_all(blocks);
  const auto end = Clock::now() + std::chrono::milliseconds(3'500);
  while (Clock::now() < end) pair();
}

void thread() {
  std::mutex mutex;
  std::condition_variable changed;
  bool freed = false;
  bool done = false;
  std::thread other([&] {
    free_all(allocate_much());
    std::unique_lock<std::mutex> lock(mutex);
    freed = true;
    changed.notify_all();
    changed.wait(lock, [&] { return done; });
  });
  {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return freed; });
  }
  wait_until([](const cupool_figures& now) { return now.pool_reserved_bytes == 0; });
  {
    const std::lock_guard<std::mutex> lock(mutex);
    done = true;
  }
  changed.notify_all();
  other.join();
}

void pairs() {
  uint64_t grown = 0;
  const auto end = Clock::now() + std::chrono::milliseconds(2'500);
  for (int i = 0; i <= 20 || Clock::now() < end; ++i) {
    free_all(allocate_much());
    if (cupool_snapshot != nullptr && i == 20) grown = figures().growth_bytes_total;
    usleep(10'000);
  }
  if (cupool_snapshot != nullptr) CHECK(figures().growth_bytes_total == grown);
}

void reserved() {
  void* block = nullptr;
  MUST(cudaMalloc(&block, 1024));
  wait_until([](const cupool_figures& now) {
    return now.pool_reserved_bytes >= 512 * kMiB && now.pool_used_bytes <= 2 * kMiB;
  });
  MUST(cudaFree(block));
}

// Its blocks go back to the driver at some time in between.
void twice() {
  const auto end = Clock::now() + std::chrono::milliseconds(700);
  while (Clock::now() < end) {
    void* block = nullptr;
    MUST(cudaMalloc(&block, 4 * kMiB));
    MUST(cudaFree(block));
    for (const auto later = Clock::now() + std::chrono::milliseconds(3); Clock::now() < later;) {
      CHECK(cudaFree(block) == cudaErrorInvalidValue);
    }
  }
}

// Requests of the same kind: after a warm-up nothing more is needed. Prints what was.
void requests() {
  cupool_figures warm{};
  cudaStream_t stream = nullptr;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int request = 0; request < 200; ++request) {
    if (request == 100 && cupool_snapshot != nullptr) warm = figures();
    std::vector<void*> blocks;
    for (int i = 0; i < 40; ++i) {
      const size_t bytes = size_t{1000} << ((i * 7 + request) % 14);
      MUST(cudaMalloc(&blocks.emplace_back(), bytes));
      MUST(cudaMemsetAsync(blocks.back(), i, bytes, stream));
      if (i % 3 != 0) continue;
      MUST(cudaFree(blocks.front()));
      blocks.erase(blocks.begin());
    }
    free_all(blocks);
    if (request % 4 == 3) MUST(cudaStreamSynchronize(stream));
  }
  MUST(cudaStreamDestroy(stream));
  if (cupool_snapshot == nullptr) return;
  const cupool_figures end = figures();
  const uint64_t grown = end.growth_bytes_total - warm.growth_bytes_total;
  const uint64_t waits = end.free_waits_total - warm.free_waits_total;
  std::fprintf(stderr, "grown %" PRIu64 " waits %" PRIu64 "\n", grown, waits);
}

void stay() {
  free_all(allocate_much());
  usleep(500'000);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = probe::argument(argc, argv, "mode", "leave");
  if (mode == "leave") leave();
  if (mode == "crowded") crowded();
  if (mode == "lane") lane();
  if (mode == "thread") thread();
  if (mode == "pairs") pairs();
  if (mode == "reserved") reserved();
  if (mode == "twice") twice();
  if (mode == "requests") requests();
  if (mode == "stay") stay();
  std::printf("done\n");
  return 0;
}
