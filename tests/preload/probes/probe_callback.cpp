// SPDX-License-Identifier: Apache-2.0
// A callback that lets another thread destroy its stream while the thread that submitted it is
// still on its way back from that call (CUDA's simpleCallback sample does so). Allocates and frees
// before and after, so that the engine is there.
#include <cuda_runtime_api.h>

#include <atomic>
#include <thread>

#include "probe.h"

namespace {

constexpr int kRounds = 3;

struct Handover {
  cudaStream_t stream = nullptr;
  std::atomic<bool> called{false};
};

void CUDART_CB note_call(void* data) {
  static_cast<Handover*>(data)->called.store(true);
}

void destroy_when_called(Handover* handover) {
  while (!handover->called.load()) std::this_thread::yield();
  MUST(cudaStreamDestroy(handover->stream));
}

}  // namespace

int main() {
  void* block = nullptr;
  for (int i = 0; i < kRounds; ++i) {
    Handover handover;
    MUST(cudaMalloc(&block, 4096));
    MUST(cudaStreamCreateWithFlags(&handover.stream, cudaStreamNonBlocking));
    std::thread other(destroy_when_called, &handover);
    MUST(cudaLaunchHostFunc(handover.stream, note_call, &handover));
    other.join();
    MUST(cudaFree(block));
  }
  std::printf("rounds=%d\n", kRounds);
  return 0;
}
