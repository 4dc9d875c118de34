// SPDX-License-Identifier: Apache-2.0
// Allocation and free before, during and after a stream capture, in each capture mode (contract 9,
// I3). Prints what each call answered and whether the capture survived; the test compares with the
// answers that the program gets without us.
#include <cuda_runtime_api.h>

#include <vector>

#include "probe.h"

namespace {

const char* mode_name(cudaStreamCaptureMode mode) {
  if (mode == cudaStreamCaptureModeGlobal) return "global";
  return mode == cudaStreamCaptureModeThreadLocal ? "thread" : "relaxed";
}

void print(const char* what, cudaError_t code) {
  std::printf("  %s %d\n", what, static_cast<int>(code));
}

enum class During { kNothing, kMalloc, kFree, kBoth };

void capture_once(cudaStreamCaptureMode mode, During during) {
  std::printf("capture %s, during=%d\n", mode_name(mode), static_cast<int>(during));
  constexpr size_t kSize = 1 << 20;
  cudaStream_t stream = nullptr;
  void* a = nullptr;
  void* b = nullptr;
  void* early = nullptr;
  void* inside = nullptr;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MUST(cudaMalloc(&a, kSize));
  MUST(cudaMalloc(&b, kSize));
  MUST(cudaMalloc(&early, kSize));
  MUST(cudaFree(early));  // a block that could be reused inside the capture
  MUST(cudaMalloc(&early, kSize));

  MUST(cudaStreamBeginCapture(stream, mode));
  MUST(cudaMemsetAsync(a, 0x21, kSize, stream));
  if (during == During::kMalloc || during == During::kBoth) {
    print("malloc", cudaMalloc(&inside, kSize));
  }
  if (during == During::kFree || during == During::kBoth) print("free", cudaFree(early));
  print("memcpy", cudaMemcpyAsync(b, a, kSize, cudaMemcpyDeviceToDevice, stream));
  cudaStreamCaptureStatus status{};
  print("status query", cudaStreamIsCapturing(stream, &status));
  std::printf("  status %d\n", static_cast<int>(status));
  cudaGraph_t graph = nullptr;
  print("end", cudaStreamEndCapture(stream, &graph));
  std::printf("  graph %s\n", graph == nullptr ? "lost" : "made");
  print("last error", cudaGetLastError());

  if (graph != nullptr) {
    cudaGraphExec_t exec = nullptr;
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    MUST(cudaGraphLaunch(exec, stream));
    std::vector<unsigned char> host(kSize);
    MUST(cudaMemcpyAsync(host.data(), b, kSize, cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
    const uint64_t wrong = probe::count_other_bytes(host.data(), kSize, 0x21);
    std::printf("  wrong bytes after launch %" PRIu64 "\n", wrong);
    MUST(cudaGraphExecDestroy(exec));
    MUST(cudaGraphDestroy(graph));
  }
  if (during == During::kNothing || during == During::kMalloc) MUST(cudaFree(early));
  // A free that was refused inside the capture left the block with the program.
  if (during == During::kFree || during == During::kBoth) cudaFree(early);
  if (inside != nullptr) print("free of inside", cudaFree(inside));
  cudaGetLastError();
  MUST(cudaFree(a));
  MUST(cudaFree(b));
  MUST(cudaStreamDestroy(stream));
}

}  // namespace

int main() {
  for (const cudaStreamCaptureMode mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
        cudaStreamCaptureModeRelaxed}) {
    for (const During during : {During::kNothing, During::kMalloc, During::kFree, During::kBoth}) {
      capture_once(mode, during);
    }
  }
  return 0;
}
