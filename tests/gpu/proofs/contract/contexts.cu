// SPDX-License-Identifier: Apache-2.0
// Contexts that come and go (contract 10), by the driver interface and by cudaDeviceReset.
//   contexts own            several on one device, used by any thread, destroyed with blocks in
//   them contexts reset          cudaDeviceReset, again and again contexts facts          what two
//   contexts of one device see of each other, a process for each
#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mutex>
#include <thread>

#include "common/kernels.cuh"
#include "driver_kernels.h"

namespace {

using contract::fact;
using contract::kMiB;
using contract::verdict;

struct Block {
  CUdeviceptr address;
  uint64_t words;
  uint32_t value;
};

// A context that several threads use, one at a time.
struct Floating {
  CUcontext context = nullptr;
  contract::DriverKernels kernels;
  CUdeviceptr counter = 0;
  std::vector<Block> blocks;
  std::mutex mutex;

  void make() {
    context = contract::create_context(0);
    kernels.load();
    MUST(cuMemAlloc(&counter, sizeof(uint64_t)));
    MUST(cuMemsetD8(counter, 0, sizeof(uint64_t)));
    blocks.clear();
  }

  void step(contract::Random* random) {
    const std::lock_guard<std::mutex> lock(mutex);
    MUST(cuCtxPushCurrent(context));
    Block block = {0, 1 + random->below(uint64_t{1} << (4 + random->below(18))),
                   static_cast<uint32_t>(random->below(1u << 31))};
    MUST(cuMemAlloc(&block.address, block.words * 4));
    MUST(kernels.stamp(block.address, block.words, block.value));
    blocks.push_back(block);
    if (blocks.size() > 12) {
      const size_t chosen = random->below(blocks.size());
      MUST(kernels.check(blocks[chosen].address, blocks[chosen].words, blocks[chosen].value,
                         counter));
      MUST(cuMemFree(blocks[chosen].address));
      blocks.erase(blocks.begin() + static_cast<long>(chosen));
    }
    CUcontext popped = nullptr;
    MUST(cuCtxPopCurrent(&popped));
    MUST(popped == context ? 0 : 1);
  }

  uint64_t wrong() {
    uint64_t count = 0;
    MUST(cuCtxSetCurrent(context));
    for (const Block& block : blocks) {
      MUST(kernels.check(block.address, block.words, block.value, counter));
    }
    MUST(cuMemcpyDtoH(&count, counter, sizeof count));
    return count;
  }
};

size_t free_of_primary(CUcontext primary) {
  size_t free = 0;
  size_t total = 0;
  MUST(cuCtxSetCurrent(primary));
  MUST(cuMemGetInfo(&free, &total));
  return free;
}

void own() {
  constexpr int kContexts = 3;
  constexpr int kThreads = 4;
  CUcontext primary = nullptr;
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&primary, 0));
  size_t first = 0;
  size_t last = 0;
  uint64_t wrong = 0;
  int rounds = 0;
  const auto begin = gpu_test::Clock::now();
  for (; rounds < 8 && gpu_test::seconds_since(begin) < 4.5; ++rounds) {
    Floating floating[kContexts];
    for (Floating& one : floating) one.make();
    MUST(cuCtxSetCurrent(nullptr));
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&floating, t, rounds] {
        contract::Random random(static_cast<uint64_t>(rounds * kThreads + t + 1));
        for (int i = 0; i < 60; ++i) floating[random.below(kContexts)].step(&random);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (Floating& one : floating) wrong += one.wrong();
    // Destroyed: with live blocks, with blocks freed while the GPU works, with idle ones.
    for (int i = 1; i < kContexts; ++i) {
      MUST(cuCtxSetCurrent(floating[i].context));
      if (i == 1) MUST(floating[i].kernels.spin(5000000));
      for (const Block& block : floating[i].blocks) MUST(cuMemFree(block.address));
      if (i == 2) MUST(cuCtxSynchronize());
    }
    MUST(cuCtxSetCurrent(rounds % 2 == 0 ? nullptr : primary));
    for (const Floating& one : floating) MUST(cuCtxDestroy(one.context));
    // What is allocated next, elsewhere, must work.
    MUST(cuCtxSetCurrent(primary));
    CUdeviceptr after = 0;
    MUST(cuMemAlloc(&after, 3 * kMiB));
    MUST(cuMemsetD8(after, 1, 3 * kMiB));
    MUST(cuMemFree(after));
    MUST(cuCtxSynchronize());
    last = free_of_primary(primary);
    if (rounds == 1) first = last;
    fact("own_free_mib_round_%d=%zu", rounds, last / kMiB);
  }
  fact("own_rounds=%d", rounds);
  verdict(wrong == 0, "floating contexts: " + std::to_string(wrong) + " wrong words");
  verdict(rounds > 2 && last + 64 * kMiB >= first, "memory does not shrink by destroyed contexts");
}

void reset() {
  constexpr uint64_t kWords = 100000;
  size_t first = 0;
  size_t last = 0;
  uint64_t wrong = 0;
  int rounds = 0;
  const auto begin = gpu_test::Clock::now();
  for (; rounds < 50 && gpu_test::seconds_since(begin) < 8; ++rounds) {
    std::vector<uint32_t*> blocks(20, nullptr);
    uint64_t* counter = nullptr;
    MUST(cudaMalloc(&counter, sizeof(uint64_t)));
    MUST(cudaMemset(counter, 0, sizeof(uint64_t)));
    for (size_t i = 0; i < blocks.size(); ++i) {
      MUST(cudaMalloc(&blocks[i], (i + 1) * kWords * 4));
      stamp_u32<<<64, 256>>>(blocks[i], (i + 1) * kWords, static_cast<uint32_t>(i + 7));
      check_u32<<<64, 256>>>(blocks[i], (i + 1) * kWords, static_cast<uint32_t>(i + 7), counter);
      MUST(cudaGetLastError());
    }
    uint64_t count = 0;
    MUST(cudaMemcpy(&count, counter, sizeof count, cudaMemcpyDeviceToHost));
    wrong += count;
    if (rounds % 3 == 1) spin_ns<<<1, 1>>>(3000000);
    for (size_t i = 0; i < blocks.size(); i += 2) MUST(cudaFree(blocks[i]));
    const int code = cudaDeviceReset();
    if (code != 0) verdict(false, "cudaDeviceReset answers " + std::to_string(code));
    // Pointers of before mean nothing now.
    if (rounds == 0) fact("same.free_of_a_pointer_from_before_reset=%d", cudaFree(blocks[1]));
    cudaGetLastError();
    size_t total = 0;
    MUST(cudaMemGetInfo(&last, &total));
    if (rounds == 2) first = last;
  }
  fact("reset_rounds=%d", rounds);
  fact("reset_free_mib_first=%zu", first / kMiB);
  fact("reset_free_mib_last=%zu", last / kMiB);
  fact("reset_shrunk_bytes=%lld", static_cast<long long>(first) - static_cast<long long>(last));
  verdict(wrong == 0, "after cudaDeviceReset: " + std::to_string(wrong) + " wrong words");
  verdict(rounds > 3 && last + 64 * kMiB >= first, "memory does not shrink by resets");
}

// Two contexts of device 0 with a block each, for the facts.
struct Pair {
  static constexpr uint64_t kWords = 1 << 20;
  CUcontext context[2] = {};
  contract::DriverKernels kernels[2];
  CUdeviceptr block[2] = {};
  CUdeviceptr counter[2] = {};
  CUevent event[2] = {};

  Pair() {
    MUST(cuInit(0));
    for (int i = 0; i < 2; ++i) {
      context[i] = contract::create_context(0);
      kernels[i].load();
      MUST(cuMemAlloc(&block[i], kWords * 4));
      MUST(cuMemAlloc(&counter[i], sizeof(uint64_t)));
      MUST(cuMemsetD8(counter[i], 0, sizeof(uint64_t)));
      MUST(kernels[i].stamp(block[i], kWords, 0xF0u + static_cast<uint32_t>(i)));
      MUST(cuEventCreate(&event[i], CU_EVENT_DISABLE_TIMING));
      MUST(cuCtxSynchronize());
    }
  }

  void use(int i) { MUST(cuCtxSetCurrent(context[i])); }
};

double milliseconds_since(gpu_test::Clock::time_point begin) {
  return gpu_test::seconds_since(begin) * 1e3;
}

constexpr uint64_t kLong = 100000000;  // 100 ms

// Whether a kernel in context 1 can read what context 0 allocated.
void read_other(const char* name, bool enable) {
  Pair pair;
  pair.use(1);
  if (enable) fact("%s_enable=%d", name, cuCtxEnablePeerAccess(pair.context[0], 0));
  int code = pair.kernels[1].check(pair.block[0], Pair::kWords, 0xF0u, pair.counter[1]);
  if (code == 0) code = cuCtxSynchronize();
  uint64_t count = 0;
  const int copied = cuMemcpyDtoH(&count, pair.counter[1], sizeof count);
  fact("%s_code=%d", name, code);
  fact("%s_wrong=%llu", name, static_cast<unsigned long long>(count));
  fact("valid.%s=%d", name, code == 0 && copied == 0 && count == 0);
}

void read_without_access() {
  read_other("read_without_access", false);
}

void read_with_access() {
  read_other("read_with_access", true);
}

// Legacy free in context 0 while a kernel of context 1 runs.
void free_waits_for_other_context() {
  Pair pair;
  pair.use(1);
  const auto begin = gpu_test::Clock::now();
  MUST(pair.kernels[1].spin(kLong));
  pair.use(0);
  const int code = cuMemFree(pair.block[0]);
  const double freed = milliseconds_since(begin);
  MUST(cuCtxSynchronize());
  const double synchronised = milliseconds_since(begin);
  pair.use(1);
  MUST(cuCtxSynchronize());
  fact("free_beside_other_context_code=%d", code);
  fact("free_beside_other_context_ms=%.2f", freed);
  fact("synchronise_beside_other_context_ms=%.2f", synchronised);
  fact("other_context_kernel_ms=%.2f", milliseconds_since(begin));
}

// Free of context 0's memory with context 1 current, while a kernel of context 0 runs.
void free_from_other_context() {
  Pair pair;
  pair.use(0);
  const auto begin = gpu_test::Clock::now();
  MUST(pair.kernels[0].spin(kLong));
  pair.use(1);
  const int code = cuMemFree(pair.block[0]);
  const double freed = milliseconds_since(begin);
  pair.use(0);
  MUST(cuCtxSynchronize());
  fact("same.free_from_other_context_code=%d", code);
  fact("free_from_other_context_ms=%.2f", freed);
  fact("its_own_kernel_ms=%.2f", milliseconds_since(begin));
}

// An event of context 0 while a kernel of context 1 runs; and the other way round for reference.
void event_covers_other_context() {
  Pair pair;
  for (const int busy : {1, 0}) {
    pair.use(busy);
    const auto begin = gpu_test::Clock::now();
    MUST(pair.kernels[busy].spin(kLong));
    pair.use(0);
    MUST(cuCtxRecordEvent(pair.context[0], pair.event[0]));
    const char* whose = busy == 1 ? "other" : "own";
    fact("event_with_%s_kernel_at_once=%d", whose, cuEventQuery(pair.event[0]));
    usleep(20000);
    fact("event_with_%s_kernel_after_20_ms=%d", whose, cuEventQuery(pair.event[0]));
    MUST(cuEventSynchronize(pair.event[0]));
    fact("event_with_%s_kernel_ms=%.2f", whose, milliseconds_since(begin));
    pair.use(busy);
    MUST(cuCtxSynchronize());
  }
}

void copy_between_contexts() {
  Pair pair;
  pair.use(0);
  int code = cuMemcpyDtoD(pair.block[0], pair.block[1], Pair::kWords * 4);
  if (code == 0) code = cuCtxSynchronize();
  uint64_t count = 0;
  if (code == 0) {
    MUST(pair.kernels[0].check(pair.block[0], Pair::kWords, 0xF1u, pair.counter[0]));
    MUST(cuMemcpyDtoH(&count, pair.counter[0], sizeof count));
  }
  fact("valid.copy_between_contexts=%d", code == 0 && count == 0);
}

void destroy_while_other_runs() {
  Pair pair;
  pair.use(1);
  const auto begin = gpu_test::Clock::now();
  MUST(pair.kernels[1].spin(kLong));
  MUST(cuCtxDestroy(pair.context[0]));
  fact("destroy_beside_other_context_ms=%.2f", milliseconds_since(begin));
  MUST(cuCtxSynchronize());
  fact("same.free_after_destroy=%d", cuMemFree(pair.block[0]));
  MUST(cuMemFree(pair.block[1]));
}

const struct {
  const char* name;
  void (*ask)();
} kFacts[] = {{"read_without_access", read_without_access},
              {"read_with_access", read_with_access},
              {"free_waits_for_other_context", free_waits_for_other_context},
              {"free_from_other_context", free_from_other_context},
              {"event_covers_other_context", event_covers_other_context},
              {"copy_between_contexts", copy_between_contexts},
              {"destroy_while_other_runs", destroy_while_other_runs}};

// An error of one fact is sticky: each has a process, made before CUDA is used.
void facts() {
  for (const auto& one : kFacts) {
    const pid_t child = fork();
    MUST(child < 0 ? 1 : 0);
    if (child == 0) {
      alarm(8);
      execl("/proc/self/exe", "contexts", one.name, static_cast<char*>(nullptr));
      _exit(3);
    }
    int status = 0;
    MUST(waitpid(child, &status, 0) == child ? 0 : 1);
    fact("same.ending_of_%s=%s %d", one.name, WIFSIGNALED(status) ? "signal" : "exit",
         WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (contract::asked(argc, argv, "own")) {
    own();
  } else if (contract::asked(argc, argv, "reset")) {
    reset();
  } else if (contract::asked(argc, argv, "facts")) {
    facts();
  } else {
    for (const auto& one : kFacts) {
      if (!contract::asked(argc, argv, one.name)) continue;
      one.ask();
      return 0;
    }
    return 2;
  }
  return contract::exit_code();
}
