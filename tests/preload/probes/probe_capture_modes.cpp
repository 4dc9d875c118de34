// SPDX-License-Identifier: Apache-2.0
// Allocation and free around captures (contract 9): in each capture mode, with a blocking and a
// non-blocking stream, on the capturing and on another thread, with other streams busy; each graph
// is launched several times with the memory. One line for each case; the test holds them against
// the lines of the program without us.
#include <cuda_runtime_api.h>

#include <functional>
#include <thread>
#include <vector>

#include "owner.h"
#include "probe.h"

namespace {

constexpr size_t kSize = 300000;
constexpr unsigned int kPerThread = 99;  // stands for cudaStreamPerThread among the flags

enum class What { nothing, mallocs, frees, pairs, use };
const char* const kWhats[] = {"nothing", "mallocs", "frees", "pairs", "use"};

struct Case {
  cudaStreamCaptureMode mode;
  unsigned int stream_flags;
  bool other_thread;
  bool busy;
  What what;
};

// What a case has done inside its capture.
struct Inside {
  int first_error = 0;
  std::vector<void*> kept;  // allocated inside, freed after the capture
};

void note(Inside* inside, cudaError_t code) {
  if (code != cudaSuccess && inside->first_error == 0) inside->first_error = static_cast<int>(code);
}

void allocate_inside(Inside* inside, int count) {
  for (int i = 0; i < count; ++i) {
    void* p = nullptr;
    const cudaError_t code = cudaMalloc(&p, kSize << (i % 4));
    note(inside, code);
    if (code == cudaSuccess) inside->kept.push_back(p);
  }
}

void run_inside(const Case& is, Inside* inside, std::vector<void*>* early, cudaStream_t busy) {
  switch (is.what) {
    case What::nothing:
    case What::use:
      return;
    case What::mallocs:
      allocate_inside(inside, 5);
      return;
    case What::frees:
      while (!early->empty()) {
        if (busy != nullptr) note(inside, cudaMemsetAsync(early->back(), 7, kSize, busy));
        const cudaError_t code = cudaFree(early->back());
        note(inside, code);
        if (code != cudaSuccess) return;
        early->pop_back();
      }
      return;
    case What::pairs:
      for (int i = 0; i < 40; ++i) {
        void* p = nullptr;
        cudaError_t code = cudaMalloc(&p, kSize);
        note(inside, code);
        if (code != cudaSuccess) return;
        if (busy != nullptr) note(inside, cudaMemsetAsync(p, i, kSize, busy));
        code = cudaFree(p);
        note(inside, code);
        if (code != cudaSuccess) inside->kept.push_back(p);
      }
  }
}

uint64_t launch_three_times(cudaGraph_t graph, cudaStream_t stream, void* result, int value) {
  cudaGraphExec_t executable = nullptr;
  MUST(cudaGraphInstantiate(&executable, graph, 0));
  uint64_t wrong = 0;
  std::vector<unsigned char> host(kSize);
  for (int i = 0; i < 3; ++i) {
    MUST(cudaMemsetAsync(result, 0, kSize, stream));
    MUST(cudaGraphLaunch(executable, stream));
    // The program goes on allocating between launches.
    void* p = nullptr;
    MUST(cudaMalloc(&p, kSize));
    MUST(cudaMemsetAsync(p, 0xCC, kSize, stream));
    MUST(cudaFree(p));
    MUST(cudaMemcpyAsync(host.data(), result, kSize, cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
    wrong += probe::count_other_bytes(host.data(), kSize, value);
  }
  MUST(cudaGraphExecDestroy(executable));
  return wrong;
}

void capture(const Case& is) {
  cudaStream_t stream = nullptr;
  cudaStream_t busy = nullptr;
  void* a = nullptr;
  void* b = nullptr;
  if (is.stream_flags == kPerThread) {
    stream = cudaStreamPerThread;
  } else {
    MUST(cudaStreamCreateWithFlags(&stream, is.stream_flags));
  }
  if (is.busy) MUST(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking));
  MUST(cudaMalloc(&a, kSize));
  MUST(cudaMalloc(&b, kSize));
  probe::own(a, kSize);
  probe::own(b, kSize);
  std::vector<void*> early(20);
  for (void*& p : early) MUST(cudaMalloc(&p, kSize));
  void* used = nullptr;
  MUST(cudaMalloc(&used, kSize));
  MUST(cudaMemsetAsync(used, 5, kSize, stream));
  MUST(cudaFree(used));  // freed before the capture, with work of the capturing stream pending
  if (busy != nullptr) MUST(cudaMemsetAsync(early[0], 1, kSize, busy));

  const int value = 0x30 + static_cast<int>(is.what);
  Inside inside;
  MUST(cudaStreamBeginCapture(stream, is.mode));
  note(&inside, cudaMemsetAsync(a, value, kSize, stream));
  const auto work = [&] {
    MUST(cudaSetDevice(0));
    run_inside(is, &inside, &early, busy);
  };
  if (is.other_thread) {
    std::thread(work).join();
  } else {
    work();
  }
  if (is.what == What::use && !is.other_thread) {
    // A block that was allocated inside, used by the graph.
    allocate_inside(&inside, 1);
    if (!inside.kept.empty()) {
      note(&inside, cudaMemcpyAsync(inside.kept[0], a, kSize, cudaMemcpyDeviceToDevice, stream));
      note(&inside, cudaMemcpyAsync(b, inside.kept[0], kSize, cudaMemcpyDeviceToDevice, stream));
    }
  } else {
    note(&inside, cudaMemcpyAsync(b, a, kSize, cudaMemcpyDeviceToDevice, stream));
  }
  cudaGraph_t graph = nullptr;
  const int ended = static_cast<int>(cudaStreamEndCapture(stream, &graph));
  std::printf("mode %d, stream %u, thread %d, busy %d, %s: inside %d, end %d, graph %s",
              static_cast<int>(is.mode), is.stream_flags, is.other_thread, is.busy,
              kWhats[static_cast<int>(is.what)], inside.first_error, ended,
              graph == nullptr ? "lost" : "made");
  cudaGetLastError();
  if (graph != nullptr) {
    std::printf(", wrong bytes %" PRIu64, launch_three_times(graph, stream, b, value));
    MUST(cudaGraphDestroy(graph));
  }
  std::printf("\n");
  for (void* p : inside.kept) MUST(cudaFree(p));
  for (void* p : early) MUST(cudaFree(p));
  probe::disown(a, kSize);
  probe::disown(b, kSize);
  MUST(cudaFree(a));
  MUST(cudaFree(b));
  if (busy != nullptr) MUST(cudaStreamDestroy(busy));
  if (is.stream_flags != kPerThread) MUST(cudaStreamDestroy(stream));
}

// Two captures at once, one after the other ended, with allocation in each state.
void two_captures() {
  cudaStream_t streams[2] = {};
  void* blocks[2] = {};
  for (int i = 0; i < 2; ++i) {
    MUST(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    MUST(cudaMalloc(&blocks[i], kSize));
    MUST(cudaStreamBeginCapture(streams[i], cudaStreamCaptureModeRelaxed));
    MUST(cudaMemsetAsync(blocks[i], 0x60 + i, kSize, streams[i]));
  }
  for (int i = 0; i < 2; ++i) {
    void* p = nullptr;
    MUST(cudaMalloc(&p, kSize));
    MUST(cudaFree(p));
    cudaGraph_t graph = nullptr;
    const int ended = static_cast<int>(cudaStreamEndCapture(streams[i], &graph));
    std::printf("mode 2, two captures, %d: inside 0, end %d, graph %s", i, ended,
                graph == nullptr ? "lost" : "made");
    if (i == 0) MUST(cudaMalloc(&p, kSize));
    if (i == 0) MUST(cudaFree(p));
    if (i == 1 && graph != nullptr) {
      std::printf(", wrong bytes %" PRIu64,
                  launch_three_times(graph, streams[i], blocks[i], 0x60 + i));
    }
    std::printf("\n");
    MUST(cudaGraphDestroy(graph));
  }
  for (int i = 0; i < 2; ++i) {
    MUST(cudaFree(blocks[i]));
    MUST(cudaStreamDestroy(streams[i]));
  }
}

}  // namespace

int main() {
  // The legacy stream cannot capture, with or without blocks of ours.
  for (int round = 0; round < 2; ++round) {
    const int code =
        static_cast<int>(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed));
    std::printf("legacy stream: %d, last error %d\n", code, static_cast<int>(cudaGetLastError()));
    void* p = nullptr;
    MUST(cudaMalloc(&p, kSize));
    MUST(cudaFree(p));
  }
  for (const cudaStreamCaptureMode mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
        cudaStreamCaptureModeRelaxed}) {
    for (const unsigned int flags :
         {unsigned{cudaStreamDefault}, unsigned{cudaStreamNonBlocking}, kPerThread}) {
      for (const bool other_thread : {false, true}) {
        for (const bool busy : {false, true}) {
          for (const What what :
               {What::nothing, What::mallocs, What::frees, What::pairs, What::use}) {
            capture({mode, flags, other_thread, busy, what});
          }
        }
      }
    }
  }
  two_captures();
  return 0;
}
