// SPDX-License-Identifier: Apache-2.0
// How a process may live and end (contract 11). The exit code, or the signal, is the answer:
//   lifecycle threads | exit_busy | handlers | quick_exit | _exit | abort | terminate | return
//   lifecycle exit_in_handler
//   lifecycle fork__exit | fork_exit | fork_malloc | fork_before
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <thread>

#include "common/kernels.cuh"
#include "contract.h"

namespace {

using contract::fact;
using contract::kMiB;
using contract::verdict;

constexpr uint64_t kWords = 100000;

// Frees at the very end: constructed before main, so destroyed after what main registered.
struct Static {
  void* block = nullptr;
  ~Static() {
    if (block != nullptr) std::printf("fact same.free_in_destructor=%d\n", cudaFree(block));
    std::fflush(stdout);
  }
};
Static kept;
void* for_handler = nullptr;

void free_in_handler() {
  std::printf("fact same.free_in_handler=%d\n", cudaFree(for_handler));
  std::fflush(stdout);
}

// Wrong words of one round of allocation, stamp, check, with frees left pending.
uint64_t use(int rounds) {
  uint64_t* wrong = nullptr;
  uint64_t count = 0;
  MUST(cudaMalloc(&wrong, sizeof count));
  MUST(cudaMemset(wrong, 0, sizeof count));
  for (int i = 0; i < rounds; ++i) {
    uint32_t* words = nullptr;
    MUST(cudaMalloc(&words, kWords * 4));
    stamp_u32<<<16, 256>>>(words, kWords, 77u + i);
    check_u32<<<16, 256>>>(words, kWords, 77u + i, wrong);
    MUST(cudaGetLastError());
    MUST(cudaFree(words));
  }
  MUST(cudaMemcpy(&count, wrong, sizeof count, cudaMemcpyDeviceToHost));
  MUST(cudaFree(wrong));
  return count;
}

// Leaves a live block, idle ones, a pending free and running work behind.
void be_in_the_middle() {
  verdict(use(40) == 0, "use before the end");
  void* live = nullptr;
  void* retired = nullptr;
  MUST(cudaMalloc(&live, 5 * kMiB));
  MUST(cudaMalloc(&retired, 5 * kMiB));
  MUST(cudaFree(retired));
  spin_ns<<<1, 1>>>(20000000);
  MUST(cudaGetLastError());
}

size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t pages = 0;
  file >> pages >> pages;
  return pages * 4096;
}

size_t free_bytes() {
  size_t free = 0;
  size_t total = 0;
  MUST(cudaMemGetInfo(&free, &total));
  return free;
}

// Allocates until it is told to stop or refused, as it is when the process ends.
void churn(const std::atomic<bool>* stop, std::atomic<uint64_t>* done, uint64_t seed) {
  contract::Random random(seed);
  while (!stop->load()) {
    void* block = nullptr;
    if (cudaMalloc(&block, size_t{512} << random.below(12)) != cudaSuccess) return;
    if (cudaFree(block) != cudaSuccess) return;
    done->fetch_add(1);
  }
}

void one_short_life(std::atomic<uint64_t>* failed) {
  void* block = nullptr;
  if (cudaMalloc(&block, 4000) != cudaSuccess || cudaFree(block) != cudaSuccess)
    failed->fetch_add(1);
}

void threads() {
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> done{0};
  std::atomic<uint64_t> failed{0};
  std::vector<std::thread> others;
  for (uint64_t i = 0; i < 2; ++i) others.emplace_back(churn, &stop, &done, i + 1);
  size_t device_first = 0;
  size_t host_first = 0;
  int lives = 0;
  const auto begin = gpu_test::Clock::now();
  for (; lives < 10000 && gpu_test::seconds_since(begin) < 9; lives += 8) {
    if (lives == 1000) {
      device_first = free_bytes();
      host_first = resident_bytes();
    }
    std::vector<std::thread> short_lived;
    for (int i = 0; i < 8; ++i) short_lived.emplace_back(one_short_life, &failed);
    for (std::thread& thread : short_lived) thread.join();
  }
  const size_t device_last = free_bytes();
  const size_t host_last = resident_bytes();
  stop.store(true);
  for (std::thread& thread : others) thread.join();
  fact("short_lived_threads=%d", lives);
  fact("pairs_beside_them=%llu", static_cast<unsigned long long>(done.load()));
  fact("threads_seconds=%.2f", gpu_test::seconds_since(begin));
  fact("resident_growth_kib=%lld",
       (static_cast<long long>(host_last) - static_cast<long long>(host_first)) / 1024);
  verdict(failed == 0, "short-lived threads allocate and free");
  verdict(lives > 1000 && device_last + 64 * kMiB >= device_first,
          "device memory does not shrink by threads");
  verdict(lives > 1000 && host_last < host_first + 32 * kMiB,
          "host memory does not grow by threads");
  verdict(use(20) == 0, "use after the threads");
}

// Threads keep allocating while main returns.
[[noreturn]] void exit_busy() {
  static std::atomic<bool> stop{false};
  static std::atomic<uint64_t> done{0};
  for (uint64_t i = 0; i < 4; ++i) std::thread(churn, &stop, &done, i + 1).detach();
  while (done.load() < 2000) usleep(1000);
  std::exit(7);
}

[[noreturn]] void handlers() {
  // One handler registered before anything of CUDA, one after, and a static destructor.
  std::atexit([] { std::printf("fact first_handler=1\n"); });
  MUST(cudaMalloc(&for_handler, kMiB));
  MUST(cudaMalloc(&kept.block, 3 * kMiB));
  std::atexit(free_in_handler);
  be_in_the_middle();
  std::exit(7);
}

// Waits at most ten seconds; kills what hangs.
int wait_for(pid_t child) {
  int status = 0;
  for (int i = 0; i < 1000; ++i) {
    if (waitpid(child, &status, WNOHANG) == child) {
      return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
    }
    usleep(10000);
  }
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return -1;
}

// A child without exec; what it returns is its exit code. The parent goes on.
template <typename Child>
void forked(Child child_does, bool before_cuda = false) {
  if (!before_cuda) be_in_the_middle();
  std::fflush(stdout);
  const pid_t child = fork();
  MUST(child < 0 ? 1 : 0);
  if (child == 0) child_does();
  if (before_cuda) be_in_the_middle();
  fact("same.end_of_child=%d", wait_for(child));
  verdict(use(40) == 0, "the parent goes on after fork");
}

// Children that leave by exit() in a handler, whatever it interrupted.
void exit_in_handler() {
  constexpr int kChildren = 12;
  pid_t children[kChildren];
  for (int i = 0; i < kChildren; ++i) {
    children[i] = fork();
    MUST(children[i] < 0 ? 1 : 0);
    if (children[i] != 0) continue;
    signal(SIGALRM, [](int) { std::exit(9); });
    MUST(cudaFree(nullptr));
    ualarm(200000 + 7919 * static_cast<useconds_t>(i), 0);
    for (;;) use(10);
  }
  int wrong = 0;
  for (const pid_t child : children) wrong += wait_for(child) != 9;
  fact("same.wrong_ends=%d", wrong);
  verdict(wrong == 0, "exit() in a signal handler ends the process");
}

}  // namespace

int main(int argc, char** argv) {
  const auto mode = [&](const char* name) { return contract::asked(argc, argv, name); };
  if (mode("threads")) {
    threads();
  } else if (mode("exit_busy")) {
    exit_busy();
  } else if (mode("handlers")) {
    handlers();
  } else if (mode("quick_exit")) {
    be_in_the_middle();
    std::quick_exit(5);
  } else if (mode("_exit")) {
    be_in_the_middle();
    _exit(6);
  } else if (mode("abort")) {
    be_in_the_middle();
    std::abort();
  } else if (mode("terminate")) {
    be_in_the_middle();
    raise(SIGTERM);
  } else if (mode("return")) {
    be_in_the_middle();
  } else if (mode("exit_in_handler")) {
    exit_in_handler();
  } else if (mode("fork__exit")) {
    forked([] { _exit(9); });
  } else if (mode("fork_exit")) {
    forked([] { std::exit(9); });
  } else if (mode("fork_malloc")) {
    forked([] {
      void* block = nullptr;
      const int allocated = cudaMalloc(&block, 4096);
      const int freed = cudaFree(nullptr);
      fact("same.malloc_in_child=%d", allocated);
      fact("same.free_in_child=%d", freed);
      _exit(allocated == 0 ? 1 : 9);
    });
  } else if (mode("fork_before")) {
    // A child of a process that has not used CUDA may use it.
    forked([] { _exit(use(40) == 0 ? 9 : 1); }, true);
  } else {
    return 2;
  }
  return contract::exit_code();
}
