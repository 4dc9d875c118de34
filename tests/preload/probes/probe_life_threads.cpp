// SPDX-License-Identifier: Apache-2.0
// Thousands of threads that each allocate and free, eight at a time (contract 11): neither streams
// nor host memory may grow with their number. Prints what has grown, which has to be nothing.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "probe.h"

namespace {

constexpr int kAtOnce = 8;

void work(int lane) {
  void* small = nullptr;
  void* large = nullptr;
  MUST(cudaMalloc(&small, size_t{512} << (lane % 6)));
  MUST(cudaMalloc(&large, 3 << 20));
  MUST(cudaMemset(small, lane, 512));
  MUST(cudaFree(small));
  MUST(cudaFree(large));
}

void run_threads(int number) {
  for (int done = 0; done < number; done += kAtOnce) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kAtOnce; ++i) threads.emplace_back(work, done + i);
    for (std::thread& thread : threads) thread.join();
  }
}

void* page_locked(size_t bytes) {
  void* memory = nullptr;
  MUST(cudaMallocHost(&memory, bytes));
  return memory;
}

// A synchronisation and a free that wait, for copies to the host.
void wait_for_copies() {
  constexpr size_t kBytes = 8 << 20;
  static void* const buffers[2] = {page_locked(kBytes), page_locked(kBytes)};
  static std::atomic<unsigned> threads{0};  // two at a time
  static thread_local void* const host = buffers[threads++ % 2];
  void* block = nullptr;
  if (cudaMalloc(&block, kBytes) != cudaSuccess) return;
  MUST(cudaMemcpyAsync(host, block, kBytes, cudaMemcpyDeviceToHost, cudaStreamPerThread));
  MUST(cudaDeviceSynchronize());
  MUST(cudaMemcpyAsync(host, block, kBytes, cudaMemcpyDeviceToHost, cudaStreamPerThread));
  MUST(cudaFree(block));
}
bool waits = false;

// Short of memory at times, since two threads want most of a small device.
void* work_until_cancelled(void* began) {
  constexpr size_t kBlock = 24 << 20;
  for (;;) {
    if (waits) wait_for_copies();
    void* blocks[8] = {};
    for (void*& block : blocks) {
      if (cudaMalloc(&block, kBlock) != cudaSuccess) block = nullptr;
    }
    for (void* block : blocks) MUST(cudaFree(block));
    *static_cast<std::atomic<bool>*>(began) = true;
    pthread_testcancel();
  }
}

void cancel_threads(int rounds) {
  for (int round = 0; round < rounds; ++round) {
    pthread_t threads[2];
    std::atomic<bool> began[2] = {};
    for (int i = 0; i < 2; ++i) {
      MUST(pthread_create(&threads[i], nullptr, work_until_cancelled, &began[i]));
    }
    while (!began[0] || !began[1]) usleep(100);
    for (pthread_t thread : threads) MUST(pthread_cancel(thread));
    for (pthread_t thread : threads) {
      void* result = nullptr;
      MUST(pthread_join(thread, &result));
      CHECK(result == PTHREAD_CANCELED);
    }
  }
  void* most = nullptr;  // nothing was lost with them
  MUST(cudaMalloc(&most, 200 << 20));
  MUST(cudaFree(most));
  std::printf("cancelled\n");
}

long resident_kib() {
  long pages = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  CHECK(file != nullptr && std::fscanf(file, "%*d %ld", &pages) == 1);
  std::fclose(file);
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

unsigned long long streams_created() {
  using Calls = unsigned long long (*)(const char*);
  const auto calls = reinterpret_cast<Calls>(dlsym(RTLD_DEFAULT, "cupoolSimCalls"));
  return calls == nullptr ? 0 : calls("cuStreamCreate");
}

}  // namespace

int main(int argc, char** argv) {
  if (probe::argument_is(argc, argv, "mode", "cancelled")) {
    waits = probe::number(argc, argv, "waits", 0) != 0;
    cancel_threads(30);
    return 0;
  }
  const int threads = static_cast<int>(probe::number(argc, argv, "threads", 10000));
  const long allowed_kib = probe::number(argc, argv, "allowed_kib", 4096);
  run_threads(threads / 5);
  const long kib_before = resident_kib();
  const unsigned long long streams_before = streams_created();
  run_threads(threads - threads / 5);
  const unsigned long long streams = streams_created();
  const long grown_kib = resident_kib() - kib_before;
  std::fprintf(stdout, "streams %s\n", streams <= 2 * kAtOnce ? "few" : "many");
  std::fprintf(stdout, "streams grown %s\n", streams > streams_before + kAtOnce ? "yes" : "no");
  std::fprintf(stdout, "memory grown %s\n", grown_kib > allowed_kib ? "yes" : "no");
  if (grown_kib > allowed_kib) std::fprintf(stderr, "grown by %ld KiB\n", grown_kib);
  return 0;
}
