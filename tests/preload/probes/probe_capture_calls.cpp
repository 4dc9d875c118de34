// SPDX-License-Identifier: Apache-2.0
// What each call that allocates or frees answers during a capture, the first time and the second,
// and whether the capture is valid at its end (contract 9): by either interface, in each mode, on
// the capturing thread and on another. Blocks that were freed before lie ready for each call. Lines
// as in tests/gpu/proofs/contract/contract.h, since it is run on a GPU as well.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "probe.h"

namespace {

constexpr size_t kSize = 4096;
constexpr size_t kWidth = 500;
constexpr size_t kHeight = 10;
const char* const kModes[] = {"global", "thread_local", "relaxed"};

struct Scene {
  CUcontext context = nullptr;
  CUstream capturing = nullptr;
  CUstream other = nullptr;
  CUdeviceptr live[2] = {};   // the program's before the capture, for the first and second call
  CUdeviceptr freed[2] = {};  // nobody's
  CUdeviceptr got[2] = {};    // what the calls gave the program
  bool still_live[2] = {};    // by what the calls answered
};
Scene scene;

struct Call {
  const char* name;
  std::function<int(int)> make;
};

int take(int code, int turn, void* p) {
  if (code == 0) scene.got[turn] = reinterpret_cast<CUdeviceptr>(p);
  return code;
}
int give(int code, int turn) {
  if (code == 0) scene.still_live[turn] = false;
  return code;
}
int and_last_error(int code) {
  return code * 1000 + static_cast<int>(cudaGetLastError());
}
void* pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

const std::vector<Call>& calls() {
  static const std::vector<Call> all = {
      {"nothing", [](int) { return 0; }},
      {"cuMemAlloc", [](int turn) { return cuMemAlloc(&scene.got[turn], kSize); }},
      {"cuMemAlloc_of_too_much",
       [](int turn) { return cuMemAlloc(&scene.got[turn], size_t{1} << 60); }},
      {"cuMemAllocPitch",
       [](int turn) {
         size_t pitch = 0;
         const int code = cuMemAllocPitch(&scene.got[turn], &pitch, kWidth, kHeight, 4);
         return code + 10000 * static_cast<int>(pitch);
       }},
      {"cuMemFree", [](int turn) { return give(cuMemFree(scene.live[turn]), turn); }},
      {"cuMemFree_of_the_same_twice", [](int) { return give(cuMemFree(scene.live[0]), 0); }},
      {"cuMemFree_of_nobodys", [](int turn) { return cuMemFree(scene.freed[turn]); }},
      {"cuMemFree_inside_a_block", [](int turn) { return cuMemFree(scene.live[turn] + 512); }},
      {"cuMemFreeAsync_elsewhere",
       [](int turn) { return give(cuMemFreeAsync(scene.live[turn], scene.other), turn); }},
      {"cuMemFreeAsync_in_the_capture",
       [](int turn) { return give(cuMemFreeAsync(scene.live[turn], scene.capturing), turn); }},
      {"cuMemFreeAsync_of_nobodys",
       [](int turn) { return cuMemFreeAsync(scene.freed[turn], scene.other); }},
      {"cudaMalloc",
       [](int turn) {
         void* p = nullptr;
         const int code = cudaMalloc(&p, kSize);
         return and_last_error(take(code, turn, p));
       }},
      {"cudaMallocPitch",
       [](int turn) {
         void* p = nullptr;
         size_t pitch = 0;
         const int code = cudaMallocPitch(&p, &pitch, kWidth, kHeight);
         return and_last_error(take(code, turn, p)) + static_cast<int>(pitch) * 1000000;
       }},
      {"cudaMalloc3D",
       [](int turn) {
         cudaPitchedPtr p{};
         const int code = cudaMalloc3D(&p, cudaExtent{kWidth, kHeight, 2});
         return and_last_error(take(code, turn, p.ptr)) + static_cast<int>(p.pitch) * 1000000;
       }},
      {"cudaFree",
       [](int turn) { return and_last_error(give(cudaFree(pointer(scene.live[turn])), turn)); }},
      {"cudaFree_of_nobodys",
       [](int turn) { return and_last_error(cudaFree(pointer(scene.freed[turn]))); }},
      {"cudaFreeAsync",
       [](int turn) {
         return and_last_error(give(cudaFreeAsync(pointer(scene.live[turn]), scene.other), turn));
       }},
  };
  return all;
}

// A block of each size that the calls ask for lies ready when the capture begins.
void prepare() {
  for (int turn = 0; turn < 2; ++turn) {
    MUST(cuMemAlloc(&scene.live[turn], kSize));
    MUST(cuMemAlloc(&scene.freed[turn], kSize));
    scene.still_live[turn] = true;
    scene.got[turn] = 0;
  }
  void* rows[3] = {};
  size_t pitch = 0;
  MUST(cudaMallocPitch(&rows[0], &pitch, kWidth, kHeight));
  MUST(cudaMallocPitch(&rows[1], &pitch, kWidth, kHeight));
  MUST(cudaMalloc(&rows[2], 2 * kHeight * pitch));
  for (void* p : rows) MUST(cudaFree(p));
  for (const CUdeviceptr p : scene.freed) MUST(cuMemFree(p));
  MUST(cuCtxSynchronize());
}

void clean_up() {
  for (int turn = 0; turn < 2; ++turn) {
    if (scene.still_live[turn]) MUST(cuMemFree(scene.live[turn]));
    if (scene.got[turn] != 0) MUST(cuMemFree(scene.got[turn]));
  }
}

void capture(const Call& call, CUstreamCaptureMode mode, bool elsewhere) {
  prepare();
  MUST(cuStreamBeginCapture(scene.capturing, mode));
  MUST(cuMemsetD8Async(scene.live[0], 1, 16, scene.capturing));
  int codes[2] = {};
  const auto work = [&] {
    MUST(cuCtxSetCurrent(scene.context));
    for (int turn = 0; turn < 2; ++turn) codes[turn] = call.make(turn);
  };
  if (elsewhere) {
    std::thread(work).join();
  } else {
    work();
  }
  CUgraph graph = nullptr;
  const int end = cuStreamEndCapture(scene.capturing, &graph);
  if (graph != nullptr) MUST(cuGraphDestroy(graph));
  std::printf("fact same.%s.%s.%s=%d, %d, end %d\n", call.name, kModes[mode],
              elsewhere ? "another_thread" : "same_thread", codes[0], codes[1], end);
  clean_up();
}

}  // namespace

int main() {
  MUST(cudaFree(nullptr));
  MUST(cuCtxGetCurrent(&scene.context));
  MUST(cuStreamCreate(&scene.capturing, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&scene.other, CU_STREAM_NON_BLOCKING));
  for (const Call& call : calls()) {
    for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                            CU_STREAM_CAPTURE_MODE_RELAXED}) {
      for (const bool elsewhere : {false, true}) capture(call, mode, elsewhere);
    }
  }
  return 0;
}
