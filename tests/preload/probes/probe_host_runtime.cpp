// SPDX-License-Identifier: Apache-2.0
// Page-locked memory by the runtime interface, where cupool has short cuts. case=errors: codes and
// the last error; case=flags: what the program sees of memory of each kind, allocated by one call
// site again and again; case=pairs: rounds=N pairs by each of
// threads=N threads; case=busy: a copy that is
// not complete when its target is freed and allocated again.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "probe.h"

namespace {

using probe::say;

// The code, and the last error as a peek and two gets see it.
void line(const char* what, cudaError_t code) {
  say(what, static_cast<long>(code));
  say("  peeked", static_cast<long>(cudaPeekAtLastError()));
  say("  last", static_cast<long>(cudaGetLastError()));
  say("  then", static_cast<long>(cudaGetLastError()));
}

void* allocate(size_t bytes, unsigned flags) {
  void* memory = nullptr;
  MUST(cudaHostAlloc(&memory, bytes, flags));
  return memory;
}

// So often that cupool knows the call sites.
int errors() {
  for (int round = 0; round < 4; ++round) {
    int on_stack = 0;
    void* memory = &on_stack;
    line("size 0", cudaMallocHost(&memory, 0));
    say("  null", memory == nullptr);
    line("nowhere", cudaMallocHost(nullptr, 64));
    line("by flags, nowhere", cudaHostAlloc(nullptr, 64, 0));
    line("unknown flags", cudaHostAlloc(&memory, 64, 0x100));
    line("too much", cudaMallocHost(&memory, size_t{1} << 60));
    line("free of null", cudaFreeHost(nullptr));
    line("free of the stack", cudaFreeHost(&on_stack));
    MUST(cudaMallocHost(&memory, 5000));
    line("interior", cudaFreeHost(static_cast<char*>(memory) + 64));
    void* device = nullptr;
    MUST(cudaMalloc(&device, 4096));
    line("free of device memory", cudaFreeHost(device));
    line("free as device memory", cudaFree(memory));
    MUST(cudaFree(device));
    line("free", cudaFreeHost(memory));
    line("free again", cudaFreeHost(memory));
    // A success leaves the last error as it is.
    cudaFreeHost(&on_stack);
    const int allocated = cudaMallocHost(&memory, 5000);
    const int freed = cudaFreeHost(memory);
    say("after an error", allocated);
    say("  and", freed);
    say("  last", static_cast<long>(cudaGetLastError()));
  }
  // A thread that has no context gets one by a free.
  std::thread([] {
    void* memory = allocate(100, 0);
    std::thread([&] {
      say("elsewhere", static_cast<long>(cudaFreeHost(memory)));
      CUcontext current = nullptr;
      MUST(cuCtxGetCurrent(&current));
      say("  context", current != nullptr);
    }).join();
  }).join();
  return 0;
}

int flags() {
  for (int round = 0; round < 4; ++round) {
    for (unsigned of = 0; of < 8; ++of) {
      void* const memory = allocate(70000, of);
      std::memset(memory, 7, 70000);
      unsigned seen = 99;
      MUST(cudaHostGetFlags(&seen, memory));
      size_t size = 0;
      MUST(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                 reinterpret_cast<CUdeviceptr>(memory)));
      say("flags", static_cast<long>(of));
      say("  seen", static_cast<long>(seen));
      say("  size", static_cast<long>(size));
      MUST(cudaFreeHost(memory));
    }
  }
  return 0;
}

// All threads begin at once.
void pairs(long rounds, long threads) {
  constexpr size_t kBytes = 8192;
  void* device = nullptr;
  MUST(cudaMalloc(&device, 4096));
  MUST(cudaFree(device));
  std::atomic<long> ready{0};
  std::vector<std::thread> all;
  for (long i = 0; i < threads; ++i) {
    all.emplace_back([=, &ready] {
      MUST(cudaSetDevice(0));
      ready.fetch_add(1);
      while (ready.load() != threads) std::this_thread::yield();
      for (long round = 0; round < rounds; ++round) {
        void* memory = nullptr;
        MUST(cudaMallocHost(&memory, kBytes));
        std::memset(memory, static_cast<int>(i), kBytes);
        CHECK(probe::count_other_bytes(static_cast<unsigned char*>(memory), kBytes,
                                       static_cast<int>(i)) == 0);
        MUST(cudaFreeHost(memory));
      }
    });
  }
  for (std::thread& thread : all) thread.join();
}

int busy(long rounds) {
  constexpr size_t kBytes = 64 * 1024;
  cudaStream_t stream = nullptr;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  void* source = nullptr;
  MUST(cudaMalloc(&source, kBytes));
  MUST(cudaMemset(source, 0xbb, kBytes));
  MUST(cudaDeviceSynchronize());
  for (long round = 0; round < rounds; ++round) {
    void* memory = nullptr;
    MUST(cudaMallocHost(&memory, kBytes));
    if (round % 3 != 0)
      MUST(cudaMemcpyAsync(memory, source, kBytes, cudaMemcpyDeviceToHost, stream));
    MUST(cudaFreeHost(memory));
    MUST(cudaMallocHost(&memory, kBytes));
    std::memset(memory, 0x11, kBytes);
    MUST(cudaStreamSynchronize(stream));
    CHECK(probe::count_other_bytes(static_cast<unsigned char*>(memory), kBytes, 0x11) == 0);
    MUST(cudaFreeHost(memory));
  }
  MUST(cudaFree(source));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = probe::argument(argc, argv, "case", "errors");
  const long rounds = probe::number(argc, argv, "rounds", 10);
  if (what == "errors") return errors();
  if (what == "flags") return flags();
  if (what == "busy") return busy(rounds);
  const long threads = probe::number(argc, argv, "threads", 1);
  pairs(rounds, threads);
  return 0;
}
