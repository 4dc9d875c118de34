// SPDX-License-Identifier: Apache-2.0
// Captures and more than one context (contract 9, I3): a stream of another context joins a capture,
// and the handle of the per-thread default stream, which means another stream in each context and
// each thread. In each case the program allocates and frees meanwhile; printed is how captures end.
// Lines as in tests/gpu/proofs/contract/contract.h, since it is run on a GPU as well.
#include <cuda.h>

#include <functional>
#include <thread>
#include <vector>

#include "probe.h"

// Named as older drivers export it as well.
extern "C" CUresult CUDAAPI cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device);

namespace {

constexpr size_t kSize = 4096;
constexpr int kBlocks = 600;  // more than a thread gathers before it needs a fence

CUcontext first = nullptr;
CUcontext second = nullptr;
int printed = 0;

void make_second(int device) {
  if (device == 0) {
    MUST(cuCtxCreate_v2(&second, 0, 0));
  } else {
    MUST(cuDevicePrimaryCtxRetain(&second, device));
  }
}
void end_second(int device) {
  if (device == 0) {
    MUST(cuCtxDestroy(second));
  } else {
    MUST(cuDevicePrimaryCtxReset(device));
    MUST(cuDevicePrimaryCtxRelease(device));
  }
  MUST(cuCtxSetCurrent(first));
}

void in_thread(const std::function<void()>& body) {
  std::thread(body).join();
}

std::vector<CUdeviceptr> blocks_of(CUcontext context) {
  MUST(cuCtxSetCurrent(context));
  std::vector<CUdeviceptr> blocks(kBlocks);
  for (CUdeviceptr& block : blocks) MUST(cuMemAlloc(&block, kSize));
  return blocks;
}
void free_all(const std::vector<CUdeviceptr>& blocks) {
  for (const CUdeviceptr block : blocks) MUST(cuMemFree(block));
}
void churn(CUcontext context) {
  free_all(blocks_of(context));
}

void print_end(const char* what, CUstream stream) {
  CUgraph graph = nullptr;
  const int code = cuStreamEndCapture(stream, &graph);
  std::printf("fact same.%d.%s=end %d, graph %s\n", ++printed, what, code,
              graph == nullptr ? "lost" : "made");
  if (graph != nullptr) MUST(cuGraphDestroy(graph));
}

// The capture begins in the first context and is joined by a stream of the second.
void joined(int device, CUstreamCaptureMode mode) {
  make_second(device);
  const std::vector<CUdeviceptr> theirs = blocks_of(second);
  CUstream joining = nullptr;
  CUevent back = nullptr;
  MUST(cuStreamCreate(&joining, CU_STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&back, CU_EVENT_DISABLE_TIMING));
  const std::vector<CUdeviceptr> ours = blocks_of(first);
  CUstream stream = nullptr;
  CUevent fork = nullptr;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  MUST(cuStreamBeginCapture(stream, mode));
  MUST(cuMemsetD8Async(ours[0], 1, 16, stream));
  MUST(cuEventRecord(fork, stream));
  MUST(cuStreamWaitEvent(joining, fork, 0));
  const auto allocate_and_free = [&] {
    free_all(theirs);
    churn(second);
    churn(first);
    free_all(ours);
  };
  if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
    allocate_and_free();
  } else {
    in_thread([&] {
      CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
      MUST(cuThreadExchangeStreamCaptureMode(&relaxed));
      allocate_and_free();
    });
  }
  MUST(cuCtxSetCurrent(first));
  const int came_back = cuEventRecord(back, joining);
  const int waited = cuStreamWaitEvent(stream, back, 0);
  std::printf("fact same.%d.join_back=%d, %d\n", ++printed, came_back, waited);
  print_end("joined", stream);
  churn(second);
  churn(first);
  MUST(cuStreamDestroy(stream));
  end_second(device);
}

// The capture in the second context ends, and then the context: that in the first goes on.
void per_thread_of_two_contexts(int device) {
  make_second(device);
  churn(second);
  const std::vector<CUdeviceptr> ours = blocks_of(first);
  MUST(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED));
  in_thread([&] {
    MUST(cuCtxSetCurrent(second));
    MUST(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED));
    print_end("per_thread_of_second", CU_STREAM_PER_THREAD);
  });
  end_second(device);
  free_all(ours);
  churn(first);
  print_end("per_thread_of_first", CU_STREAM_PER_THREAD);
}

// A thread that captures nothing ends what its per-thread stream does not do.
void per_thread_of_two_threads() {
  const std::vector<CUdeviceptr> ours = blocks_of(first);
  MUST(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED));
  in_thread([] {
    MUST(cuCtxSetCurrent(first));
    print_end("captures_nothing", CU_STREAM_PER_THREAD);
  });
  free_all(ours);
  churn(first);
  print_end("captures", CU_STREAM_PER_THREAD);
}

}  // namespace

int main() {
  MUST(cuInit(0));
  int devices = 0;
  MUST(cuDeviceGetCount(&devices));
  MUST(cuDevicePrimaryCtxRetain(&first, 0));
  churn(first);
  for (int device = 0; device < devices; ++device) {
    joined(device, CU_STREAM_CAPTURE_MODE_RELAXED);
    joined(device, CU_STREAM_CAPTURE_MODE_GLOBAL);
    // Its handle decides which of the two is found first.
    for (int i = 0; i < 4; ++i) per_thread_of_two_contexts(device);
  }
  per_thread_of_two_threads();
  return 0;
}
