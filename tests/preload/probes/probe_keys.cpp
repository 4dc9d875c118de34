// SPDX-License-Identifier: Apache-2.0
// A process with no thread-specific keys left but `leave`. What it keeps under its own, the first
// key of all among them, must stay its own until its threads have ended (contract 11).
#include <cuda_runtime_api.h>
#include <pthread.h>

#include <atomic>
#include <thread>
#include <vector>

#include "probe.h"

namespace {

std::vector<pthread_key_t> keys;
std::atomic<uint64_t> foreign_values{0};
thread_local char own_value;

void value_ends(void* value) {
  if (value != &own_value) ++foreign_values;
}

void take_keys(long leave) {
  pthread_key_t key{};
  while (pthread_key_create(&key, value_ends) == 0) keys.push_back(key);
  for (; leave > 0; --leave) {
    MUST(pthread_key_delete(keys.back()));
    keys.pop_back();
  }
  std::printf("has the first key: %d\n", !keys.empty() && keys.front() == 0);
}

void set_values() {
  for (const pthread_key_t key : keys) MUST(pthread_setspecific(key, &own_value));
}

void check_values() {
  for (const pthread_key_t key : keys) CHECK(pthread_getspecific(key) == &own_value);
}

void work(int pairs) {
  cudaStream_t streams[2];
  for (cudaStream_t& stream : streams) MUST(cudaStreamCreate(&stream));
  for (int i = 0; i < pairs; ++i) {
    void* block = nullptr;
    MUST(cudaMalloc(&block, 4096));
    MUST(cudaMemsetAsync(block, i, 4096, streams[i % 2]));
    MUST(cudaFree(block));
  }
  for (const cudaStream_t stream : streams) MUST(cudaStreamDestroy(stream));
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kThreads = 3;
  constexpr int kPairs = 50;
  take_keys(probe::number(argc, argv, "leave", 0));
  set_values();
  work(kPairs);
  for (int i = 0; i < kThreads; ++i) {
    std::thread([] {
      set_values();
      work(kPairs);
      check_values();
    }).join();
  }
  MUST(cudaDeviceSynchronize());
  check_values();
  std::printf("foreign_values=%" PRIu64 "\n", foreign_values.load());
  probe::print_counts(uint64_t{kPairs} * (kThreads + 1), uint64_t{kPairs} * (kThreads + 1));
  return foreign_values == 0 ? 0 : probe::kWrongResult;
}
