// SPDX-License-Identifier: Apache-2.0
// A program that looks who serves its first allocations (CUPOOL_POOL_START), by cupool's C
// interface where it is there. mode= few (frees only in the end), leave (allocates again, and ends
// soon), at_once (the first is cupool's), later (the first twenty are not; waits until some are),
// devices (as later, on each of two), no_thread (as later, but no thread can be had, and nothing is
// waited for), loop (allocates and frees without a pause until cupool serves: one allocation has
// waited), full (as loop, with most of the device in each allocation, while the pools take memory
// for their first blocks).
#include <cuda_runtime_api.h>
#include <cupool/cupool.h>
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "probe.h"
#include "probe_memory.h"

using probe::free_memory;

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::seconds(60);
constexpr size_t kBytes = 100'000;

bool has_cupool() {
  return cupool_snapshot != nullptr;
}

// Bytes that cupool has of the device, idle ones included.
uint64_t held(int device) {
  cupool_figures now{};
  now.size = sizeof now;
  CHECK(cupool_snapshot(device, &now) == CUPOOL_OK);
  return now.held_bytes;
}

void* allocate() {
  void* block = nullptr;
  MUST(cudaMalloc(&block, kBytes));
  MUST(cudaMemset(block, 7, kBytes));
  return block;
}

std::vector<void*> allocate(int count) {
  std::vector<void*> blocks;
  for (int i = 0; i < count; ++i) blocks.push_back(allocate());
  return blocks;
}

void free_all(const std::vector<void*>& blocks) {
  for (void* block : blocks) MUST(cudaFree(block));
}

void later(int device) {
  MUST(cudaSetDevice(device));
  const size_t before = free_memory();
  free_all(allocate(5));
  const std::vector<void*> blocks = allocate(20);
  // The first pool of all takes long, and no other.
  if (has_cupool() && device == 0) CHECK(held(device) == 0);
  const auto end = Clock::now() + kPatience;
  while (has_cupool() && held(device) == 0) {
    CHECK(Clock::now() < end);
    usleep(2'000);
    MUST(cudaFree(allocate()));
  }
  free_all(blocks);
  free_all(allocate(20));
  MUST(cudaDeviceSynchronize());
  CHECK(free_memory() == before);
}

void loop() {
  MUST(cudaFree(allocate()));
  Clock::duration longest{};
  const auto end = Clock::now() + kPatience;
  for (int i = 0; has_cupool() ? held(0) == 0 : i < 10; ++i) {
    const auto begin = Clock::now();
    CHECK(begin < end);
    void* block = nullptr;
    MUST(cudaMalloc(&block, kBytes));
    longest = std::max(longest, Clock::now() - begin);
    MUST(cudaFree(block));
  }
  if (has_cupool()) CHECK(longest > std::chrono::milliseconds(5));
}

void full() {
  const size_t most = free_memory() / 4 * 3;
  free_all(allocate(5));
  for (int i = 0; i < 3000; ++i) {
    void* block = nullptr;
    MUST(cudaMalloc(&block, most));
    MUST(cudaFree(block));
  }
}

// No stack of that size can be had.
void no_thread() {
  pthread_attr_t attributes;
  CHECK(pthread_attr_init(&attributes) == 0);
  CHECK(pthread_attr_setstacksize(&attributes, size_t{1} << 50) == 0);
  MUST(cudaFree(nullptr));
  // glibc has it since 2.18; this program is linked for older ones, too.
  const auto set_default = reinterpret_cast<int (*)(const pthread_attr_t*)>(
      dlsym(RTLD_DEFAULT, "pthread_setattr_default_np"));
  CHECK(set_default != nullptr && set_default(&attributes) == 0);
  for (int i = 0; i < 3; ++i) free_all(allocate(5));
  if (has_cupool()) CHECK(held(0) != 0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = probe::argument(argc, argv, "mode", "few");
  if (mode == "few") {
    free_all(allocate(30));
    if (has_cupool()) CHECK(held(0) == 0);
  } else if (mode == "leave") {
    for (int i = 0; i < 2; ++i) free_all(allocate(5));
    usleep(50'000);  // the thread has begun by then
  } else if (mode == "at_once") {
    void* block = allocate();
    if (has_cupool()) CHECK(held(0) != 0);
    MUST(cudaFree(block));
  } else if (mode == "full") {
    full();
  } else if (mode == "later") {
    later(0);
  } else if (mode == "devices") {
    later(0);
    later(1);
  } else if (mode == "loop") {
    loop();
  } else if (mode == "no_thread") {
    no_thread();
  }
  std::printf("done\n");
  return 0;
}
