// SPDX-License-Identifier: Apache-2.0
// The ways a process ends (contract 11). mode= return, exit, _exit, quick_exit, abort, destructor
// (a static destructor frees), atexit (a handler frees), thread (one still runs). Exit code 7, so
// that a lost code shows.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "probe.h"

namespace {

constexpr int kExitCode = 7;

void* kept_block = nullptr;

// Frees after main has returned, as caches held in static objects do.
struct LateFree {
  bool active = false;
  ~LateFree() {
    if (!active) return;
    const int code = cudaFree(kept_block);
    // In the real runtime this may answer "unloading" (cccl #7063): both are right, a crash is not.
    const bool fine = code == cudaSuccess || code == cudaErrorCudartUnloading;
    std::printf("late free %s\n", fine ? "fine" : "failed");
    std::fflush(stdout);
  }
};
LateFree late_free;

void free_at_exit() {
  const int code = cudaFree(kept_block);
  void* more = nullptr;
  const int malloc_code = cudaMalloc(&more, 4096);
  std::printf("atexit free %d malloc %d\n", code, malloc_code);
  std::fflush(stdout);
}

std::atomic<bool> worker_started{false};

void work_forever() {
  for (;;) {
    void* p = nullptr;
    if (cudaMalloc(&p, 4096) != cudaSuccess) return;
    if (cudaFree(p) != cudaSuccess) return;
    worker_started = true;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = probe::argument(argc, argv, "mode", "return");
  if (mode == "atexit") MUST(std::atexit(free_at_exit));
  void* p = nullptr;
  for (int i = 0; i < 10; ++i) {
    MUST(cudaMalloc(&p, 1000 * (i + 1)));
    MUST(cudaFree(p));
  }
  MUST(cudaMalloc(&kept_block, 1 << 20));
  std::printf("leaving by %s\n", mode.c_str());
  std::fflush(stdout);
  if (mode == "exit") std::exit(kExitCode);
  if (mode == "_exit") _exit(kExitCode);
  if (mode == "_Exit") std::_Exit(kExitCode);
  if (mode == "quick_exit") std::quick_exit(kExitCode);
  if (mode == "abort") std::abort();
  if (mode == "destructor") late_free.active = true;
  if (mode == "thread") {
    std::thread(work_forever).detach();
    while (!worker_started) std::this_thread::yield();
  }
  return kExitCode;
}
