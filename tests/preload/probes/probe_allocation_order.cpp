// SPDX-License-Identifier: Apache-2.0
// A thread gets memory in a stream in which another one has freed it, frees something else, and
// uses the memory in another stream. The driver's free waits for the context, so the other thread's
// work is over by then (contract 2).
#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "probe.h"
#include "probe_gpu.h"

namespace {

using probe::Gpu;
using probe::kBytes;

constexpr std::uint64_t kWords = kBytes / 4;
constexpr std::uint64_t kLongNs = 20'000'000;
constexpr int kRounds = 4;

// A thread that lives as long as the program: one that ends passes its work on.
class OtherThread {
 public:
  OtherThread() : thread_([this] { serve(); }) {}
  ~OtherThread() {
    ends_ = true;
    thread_.join();
  }
  void run(const std::function<void()>& task) {
    task_ = task;
    asked_ = true;
    while (asked_) std::this_thread::yield();
  }

 private:
  void serve() {
    CUcontext context = nullptr;
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    while (!ends_) {
      if (asked_) task_(), asked_ = false;
      std::this_thread::yield();
    }
  }
  std::atomic<bool> asked_{false};
  std::atomic<bool> ends_{false};
  std::function<void()> task_;
  std::thread thread_;
};

void copy(const Gpu& gpu, CUdeviceptr to, CUdeviceptr from, CUstream stream) {
  std::uint64_t words = kWords;
  void* arguments[] = {&to, &from, &words};
  MUST(cuLaunchKernel(gpu.copy, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr));
}

CUdeviceptr filled(std::uint32_t value) {
  CUdeviceptr memory = 0;
  MUST(cuMemAlloc(&memory, kBytes));
  MUST(cuMemsetD32(memory, value, kWords));
  return memory;
}

void free_something() {
  CUdeviceptr block = 0;
  MUST(cuMemAlloc(&block, kBytes));
  MUST(cuMemFree(block));
}

}  // namespace

int main() {
  const Gpu gpu;
  CUstream elsewhere = nullptr;
  MUST(cuStreamCreate(&elsewhere, CU_STREAM_NON_BLOCKING));
  probe::warm_up();
  const CUdeviceptr ones = filled(1);
  const CUdeviceptr twos = filled(2);
  OtherThread other;
  int same = 0;
  int wrong = 0;
  for (int round = 0; round < kRounds; ++round) {
    MUST(cuCtxSynchronize());
    free_something();  // behind which this thread has no work
    CUdeviceptr theirs = 0;
    other.run([&] {
      MUST(cuMemAllocAsync(&theirs, kBytes, gpu.stream));
      gpu.work(kLongNs);
      copy(gpu, theirs, ones, gpu.stream);
      MUST(cuMemFreeAsync(theirs, gpu.stream));
    });
    CUdeviceptr own = 0;
    MUST(cuMemAllocAsync(&own, kBytes, gpu.stream));
    free_something();
    copy(gpu, own, twos, elsewhere);
    MUST(cuCtxSynchronize());
    std::vector<std::uint32_t> words(kWords);
    MUST(cuMemcpyDtoH(words.data(), own, kBytes));
    same += own == theirs ? 1 : 0;
    wrong += std::count(words.begin(), words.end(), 2u) == static_cast<long>(kWords) ? 0 : 1;
    MUST(cuMemFreeAsync(own, gpu.stream));
    MUST(cuStreamSynchronize(gpu.stream));
  }
  std::printf("same memory %d wrong %d\n", same, wrong);
  MUST(cuMemFree(ones));
  MUST(cuMemFree(twos));
  return wrong == 0 ? 0 : probe::kWrongResult;
}
