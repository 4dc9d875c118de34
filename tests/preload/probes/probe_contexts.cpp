// SPDX-License-Identifier: Apache-2.0
// Several contexts, their end, device reset, and allocation afterwards (contract 10).
// mode= reset (cudaDeviceReset twice), contexts (two cuCtxCreate), primary (release the last), gl
// (a context by cuGLCtxCreate), again (one thread releases the primary context, another one retains
// it at once, over and over), handles (two threads make, use and destroy contexts), busy (one
// allocates while others retain and release the primary context).
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "probe.h"
#include "runtime_work.h"

extern "C" CUresult cuGLCtxCreate(CUcontext* context, unsigned int flags, CUdevice device);
extern "C" CUresult cuGLCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device);

namespace {

WorkCounts reset_twice() {
  WorkCounts total;
  for (int round = 0; round < 3; ++round) {
    total.add(run_runtime_work(12, round % 2));
    void* lost = nullptr;
    MUST(cudaMalloc(&lost, 1 << 20));  // never freed: goes with the reset
    ++total.mallocs;
    size_t before = 0;
    size_t after = 0;
    size_t all = 0;
    MUST(cudaMemGetInfo(&before, &all));
    MUST(cudaDeviceReset());
    MUST(cudaMemGetInfo(&after, &all));
    std::printf("round %d: memory came back %d\n", round, after >= before + (1 << 20));
    std::printf("free of a lost pointer: %d\n", static_cast<int>(cudaFree(lost)));
    cudaGetLastError();
  }
  return total;
}

struct OwnContext {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr kept = 0;
};

OwnContext open_context(CUdevice device) {
  OwnContext own;
  CUctxCreateParams params{};
  MUST(cuCtxCreate(&own.context, &params, 0, device));
  MUST(cuStreamCreate(&own.stream, CU_STREAM_NON_BLOCKING));
  return own;
}

void use_context(const OwnContext& own, int value, WorkCounts* counts) {
  MUST(cuCtxSetCurrent(own.context));
  for (int i = 0; i < 10; ++i) {
    const size_t size = size_t{1000} << i;
    CUdeviceptr p = 0;
    MUST(cuMemAlloc(&p, size));
    CUcontext of_pointer = nullptr;
    MUST(cuPointerGetAttribute(&of_pointer, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    CHECK(of_pointer == own.context);  // contract 6: not null, and the right one
    MUST(cuMemsetD8Async(p, static_cast<unsigned char>(value), size, own.stream));
    std::vector<unsigned char> host(size);
    MUST(cuMemcpyDtoHAsync(host.data(), p, size, own.stream));
    MUST(cuStreamSynchronize(own.stream));
    counts->wrong_bytes += probe::count_other_bytes(host.data(), size, value);
    MUST(cuMemsetD8Async(p, 0xEE, size, own.stream));
    MUST(cuMemFree(p));
    ++counts->mallocs;
    ++counts->frees;
  }
}

WorkCounts two_contexts() {
  WorkCounts counts;
  CUdevice device = 0;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, 0));
  for (int round = 0; round < 3; ++round) {
    OwnContext a = open_context(device);
    OwnContext b = open_context(device);
    for (int i = 0; i < 2; ++i) {
      use_context(a, 0x11 + round, &counts);
      use_context(b, 0x77 + round, &counts);
    }
    MUST(cuCtxSetCurrent(a.context));
    MUST(cuMemAlloc(&a.kept, 1 << 20));
    ++counts.mallocs;
    // Freed while the other context is current: legal, and a's memory must not serve b.
    MUST(cuCtxSetCurrent(b.context));
    MUST(cuMemFree(a.kept));
    ++counts.frees;
    MUST(cuCtxSetCurrent(a.context));
    MUST(cuMemAlloc(&a.kept, 1 << 20));  // lost with its context
    ++counts.mallocs;
    MUST(cuCtxDestroy(a.context));
    MUST(cuCtxSetCurrent(b.context));
    unsigned type = 0;
    const CUresult lost = cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, a.kept);
    std::printf("attribute of a lost pointer: %d\n", static_cast<int>(lost));
    use_context(b, 0x33, &counts);
    MUST(cuCtxDestroy(b.context));
    std::printf("round %d done\n", round);
  }
  return counts;
}

// As it would be with OpenGL: the new context is current, and what is allocated is its own.
WorkCounts gl_context() {
  WorkCounts counts;
  CUdevice device = 0;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, 0));
  OwnContext own = open_context(device);
  use_context(own, 0x11, &counts);
  for (const auto create : {cuGLCtxCreate, cuGLCtxCreate_v2}) {
    CUcontext gl = nullptr;
    CUcontext of_pointer = nullptr;
    CUdeviceptr p = 0;
    MUST(create(&gl, 0, device));
    MUST(cuMemAlloc(&p, 1000));
    ++counts.mallocs;
    MUST(cuPointerGetAttribute(&of_pointer, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    CHECK(of_pointer == gl);
    MUST(cuMemFree(p));
    ++counts.frees;
    MUST(cuCtxDestroy(gl));
  }
  return counts;
}

// What the last holder's release ended is gone, though somebody has retained the context again by
// the time that one can ask: the same handle is another context.
WorkCounts primary_again(int rounds) {
  constexpr int kThreads = 3;
  constexpr int kBlocks = 20;
  MUST(cuInit(0));
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([rounds] {
      for (int round = 0; round < rounds; ++round) {
        CUcontext context = nullptr;
        MUST(cuDevicePrimaryCtxRetain(&context, 0));
        MUST(cuCtxSetCurrent(context));
        // Submitted before the context's first allocation; a free waits for it (contract 2).
        CUstream stream = nullptr;
        std::atomic<bool> called{false};
        MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        MUST(cuLaunchHostFunc(
            stream, [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &called));
        std::vector<CUdeviceptr> blocks(kBlocks);
        for (CUdeviceptr& block : blocks) MUST(cuMemAlloc(&block, 5000));
        for (const CUdeviceptr block : blocks) MUST(cuMemFree(block));
        CHECK(called);
        MUST(cuCtxSynchronize());
        MUST(cuCtxSetCurrent(nullptr));
        MUST(cuDevicePrimaryCtxRelease(0));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  WorkCounts counts;
  counts.mallocs = counts.frees = kThreads * rounds * kBlocks;
  return counts;
}

// The handle of the one's context is soon that of the other's.
WorkCounts handles_again() {
  constexpr int kThreads = 2;
  constexpr int kRounds = 200;
  MUST(cuInit(0));
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([] {
      for (int round = 0; round < kRounds; ++round) {
        CUcontext context = nullptr;
        CUstream stream = nullptr;
        CUdeviceptr block = 0;
        std::atomic<bool> called{false};
        CUctxCreateParams params{};
        MUST(cuCtxCreate(&context, &params, 0, 0));
        MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        MUST(cuLaunchHostFunc(
            stream, [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &called));
        MUST(cuMemAlloc(&block, 5000));
        MUST(cuMemFree(block));
        CHECK(called);
        MUST(cuCtxDestroy(context));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  WorkCounts counts;
  counts.mallocs = counts.frees = kThreads * kRounds;
  return counts;
}

// Who has a reference of its own is held up by nobody's.
WorkCounts primary_busy() {
  constexpr int kThreads = 24;
  constexpr int kPairs = 1000;
  MUST(cuInit(0));
  CUcontext context = nullptr;
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  std::atomic<bool> enough{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      while (!enough) {
        CUcontext same = nullptr;
        MUST(cuDevicePrimaryCtxRetain(&same, 0));
        MUST(cuDevicePrimaryCtxRelease(0));
      }
    });
  }
  const auto begin = std::chrono::steady_clock::now();
  auto longest = begin - begin;
  for (int i = 0; i < kPairs; ++i) {
    const auto before = std::chrono::steady_clock::now();
    CUdeviceptr block = 0;
    MUST(cuMemAlloc(&block, size_t{1000} << i % 8));
    MUST(cuMemFree(block));
    longest = std::max(longest, std::chrono::steady_clock::now() - before);
  }
  enough = true;
  for (std::thread& thread : threads) thread.join();
  std::printf("held up for long: %d\n", longest > std::chrono::seconds(3));
  WorkCounts counts;
  counts.mallocs = counts.frees = kPairs;
  return counts;
}

WorkCounts primary_released() {
  WorkCounts counts;
  CUdevice device = 0;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, 0));
  for (int round = 0; round < 3; ++round) {
    OwnContext own;
    MUST(cuDevicePrimaryCtxRetain(&own.context, device));
    MUST(cuCtxSetCurrent(own.context));
    MUST(cuStreamCreate(&own.stream, CU_STREAM_DEFAULT));
    use_context(own, 0x44 + round, &counts);
    MUST(cuCtxSetCurrent(nullptr));
    MUST(cuDevicePrimaryCtxRelease(device));  // the last reference: the context's state goes
    unsigned int flags = 0;
    int active = -1;
    MUST(cuDevicePrimaryCtxGetState(device, &flags, &active));
    std::printf("round %d: active after release %d\n", round, active);
  }
  return counts;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = probe::argument(argc, argv, "mode", "reset");
  WorkCounts counts;
  if (mode == "reset") counts = reset_twice();
  if (mode == "contexts") counts = two_contexts();
  if (mode == "primary") counts = primary_released();
  if (mode == "gl") counts = gl_context();
  if (mode == "again")
    counts = primary_again(static_cast<int>(probe::number(argc, argv, "rounds", 100)));
  if (mode == "handles") counts = handles_again();
  if (mode == "busy") counts = primary_busy();
  std::printf("wrong_bytes=%" PRIu64 "\n", counts.wrong_bytes);
  probe::print_counts(counts.mallocs, counts.frees);
  return counts.wrong_bytes == 0 ? 0 : probe::kWrongResult;
}
