// SPDX-License-Identifier: Apache-2.0
// What another thread does once a callback has told it so, while the thread that submitted it is
// still on its way back from that call. By default it destroys the callback's stream (CUDA's
// simpleCallback sample does so); free=function, free=callback: it frees memory, and relies on the
// end of the host function or the stream callback then. Allocates and frees before and after, so
// that the engine is there; with free=first it is not yet.
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
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  handover->done.store(true);
}

void CUDART_CB call_back_after_a_word(cudaStream_t, cudaError_t, void* data) {
  work_after_a_word(data);
}

// The driver's free waits for all pending work, the callback among it.
void free_when_called(Handover* handover) {
  while (!handover->called.load()) std::this_thread::yield();
  if (handover->block == nullptr) MUST(cudaMalloc(&handover->block, 4096));
  MUST(cudaFree(handover->block));
  std::printf("done=%d\n", handover->done.load() ? 1 : 0);
}

void free_beside_callbacks(const std::string& what) {
  const bool is_first = what == "free=first";
  for (int i = 0; i < (is_first ? 1 : kRounds); ++i) {
    Handover handover;
    if (!is_first) MUST(cudaMalloc(&handover.block, 4096));
    MUST(cudaStreamCreateWithFlags(&handover.stream, cudaStreamNonBlocking));
    std::thread other(free_when_called, &handover);
    if (what != "free=callback") {
      MUST(cudaLaunchHostFunc(handover.stream, work_after_a_word, &handover));
    } else {
      MUST(cudaStreamAddCallback(handover.stream, call_back_after_a_word, &handover, 0));
    }
    other.join();
    MUST(cudaStreamDestroy(handover.stream));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "free=function" || what == "free=callback" || what == "free=first") {
    free_beside_callbacks(what);
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
