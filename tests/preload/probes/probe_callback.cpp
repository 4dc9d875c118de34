// SPDX-License-Identifier: Apache-2.0
// What another thread does once a callback has told it so, while the thread that submitted it is
// still on its way back from that call. By default it destroys the callback's stream (CUDA's
// simpleCallback sample does so); free=1: it frees memory, and relies on the end of the callback
// then. Allocates and frees before and after, so that the engine is there.
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "probe.h"

namespace {

constexpr int kRounds = 3;

struct Handover {
  cudaStream_t stream = nullptr;
  void* block = nullptr;
  std::atomic<bool> called{false};
  std::atomic<bool> done{false};
};

void CUDART_CB note_call(void* data) {
  static_cast<Handover*>(data)->called.store(true);
}

void destroy_when_called(Handover* handover) {
  while (!handover->called.load()) std::this_thread::yield();
  MUST(cudaStreamDestroy(handover->stream));
}

void CUDART_CB work_after_a_word(void* data) {
  auto* const handover = static_cast<Handover*>(data);
  handover->called.store(true);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  handover->done.store(true);
}

// The driver's free waits for all pending work, the callback among it.
void free_when_called(Handover* handover) {
  while (!handover->called.load()) std::this_thread::yield();
  MUST(cudaFree(handover->block));
  std::printf("done=%d\n", handover->done.load() ? 1 : 0);
}

void free_beside_callbacks() {
  for (int i = 0; i < kRounds; ++i) {
    Handover handover;
    MUST(cudaMalloc(&handover.block, 4096));
    MUST(cudaStreamCreateWithFlags(&handover.stream, cudaStreamNonBlocking));
    std::thread other(free_when_called, &handover);
    MUST(cudaLaunchHostFunc(handover.stream, work_after_a_word, &handover));
    other.join();
    MUST(cudaStreamDestroy(handover.stream));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "free=1") {
    free_beside_callbacks();
    return 0;
  }
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
