// SPDX-License-Identifier: Apache-2.0
// Stream-ordered memory by the runtime interface, where cupool has short cuts. case=errors: codes
// and the last error; case=pairs: rounds=N pairs by each of threads=N threads in a stream of its
// own; case=waits: a pair in each of streams=N streams, and a wait for the device behind it.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "probe.h"

namespace {

using probe::say;

constexpr size_t kBytes = 64 << 10;

// The code, and the last error as a peek and two gets see it.
void line(const char* what, cudaError_t code) {
  say(what, static_cast<long>(code));
  say("  peeked", static_cast<long>(cudaPeekAtLastError()));
  say("  last", static_cast<long>(cudaGetLastError()));
  say("  then", static_cast<long>(cudaGetLastError()));
}

cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

// So often that cupool knows the call sites.
int errors() {
  cudaStream_t const stream = make_stream();
  for (int round = 0; round < 4; ++round) {
    int on_stack = 0;
    void* memory = &on_stack;
    line("size 0", cudaMallocAsync(&memory, 0, stream));
    line("nowhere", cudaMallocAsync(nullptr, kBytes, stream));
    line("too much", cudaMallocAsync(&memory, size_t{1} << 60, stream));
    line("free of null", cudaFreeAsync(nullptr, stream));
    line("free of the stack", cudaFreeAsync(&on_stack, stream));
    for (cudaStream_t each :
         {stream, cudaStream_t{nullptr}, cudaStreamLegacy, cudaStreamPerThread}) {
      MUST(cudaMallocAsync(&memory, kBytes, each));
      line("free", cudaFreeAsync(memory, each));
    }
    MUST(cudaMallocAsync(&memory, kBytes, stream));
    line("interior", cudaFreeAsync(static_cast<char*>(memory) + 64, stream));
    MUST(cudaFreeAsync(memory, stream));
    line("free again", cudaFreeAsync(memory, stream));
    void* device = nullptr;
    MUST(cudaMalloc(&device, 4096));
    line("free of device memory", cudaFreeAsync(device, stream));
    // A success leaves the last error as it is.
    cudaFreeAsync(&on_stack, stream);
    const int allocated = cudaMallocAsync(&memory, kBytes, stream);
    const int freed = cudaFreeAsync(memory, stream);
    say("after an error", allocated);
    say("  and", freed);
    say("  last", static_cast<long>(cudaGetLastError()));
  }
  // A thread that has no context gets one by a call.
  std::thread([&] {
    void* memory = nullptr;
    say("elsewhere", static_cast<long>(cudaMallocAsync(&memory, kBytes, stream)));
    CUcontext current = nullptr;
    MUST(cuCtxGetCurrent(&current));
    say("  context", current != nullptr);
    MUST(cudaFreeAsync(memory, stream));
  }).join();
  MUST(cudaStreamSynchronize(stream));
  MUST(cudaStreamDestroy(stream));
  return 0;
}

// All threads begin at once, and write what only they may read.
int pairs(long rounds, long threads) {
  std::atomic<long> ready{0};
  std::vector<std::thread> all;
  for (long i = 0; i < threads; ++i) {
    all.emplace_back([=, &ready] {
      cudaStream_t const stream = make_stream();
      std::vector<unsigned char> host(kBytes);
      ready.fetch_add(1);
      while (ready.load() != threads) std::this_thread::yield();
      for (long round = 0; round < rounds; ++round) {
        void* memory = nullptr;
        MUST(cudaMallocAsync(&memory, kBytes, stream));
        if (round % 16 == 0) {
          MUST(cudaMemsetAsync(memory, static_cast<int>(i), kBytes, stream));
          MUST(cudaMemcpyAsync(host.data(), memory, kBytes, cudaMemcpyDeviceToHost, stream));
          MUST(cudaStreamSynchronize(stream));
          CHECK(probe::count_other_bytes(host.data(), kBytes, static_cast<int>(i)) == 0);
        }
        MUST(cudaFreeAsync(memory, stream));
      }
      MUST(cudaStreamSynchronize(stream));
      MUST(cudaStreamDestroy(stream));
    });
  }
  for (std::thread& thread : all) thread.join();
  return 0;
}

// Memory goes from stream to stream, with a wait for the device between them.
int waits(long streams) {
  std::vector<cudaStream_t> all;
  for (long i = 0; i < streams; ++i) all.push_back(make_stream());
  for (cudaStream_t const stream : all) {
    void* memory = nullptr;
    MUST(cudaMallocAsync(&memory, kBytes, stream));
    MUST(cudaMemsetAsync(memory, 1, kBytes, stream));
    MUST(cudaFreeAsync(memory, stream));
    MUST(cudaDeviceSynchronize());
  }
  for (cudaStream_t const stream : all) MUST(cudaStreamDestroy(stream));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = probe::argument(argc, argv, "case", "errors");
  if (what == "errors") return errors();
  if (what == "waits") return waits(probe::number(argc, argv, "streams", 10));
  return pairs(probe::number(argc, argv, "rounds", 10), probe::number(argc, argv, "threads", 1));
}
