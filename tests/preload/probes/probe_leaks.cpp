// SPDX-License-Identifier: Apache-2.0
// A program that forgets memory at known places (CUPOOL_LEAKS). Arguments: many=N (leaks of 4 KiB
// from one place, beside the few others), kinds=1 (also of page-locked, managed and stream-ordered
// memory), reset=1 (and a reset of the device at the end).
#include <cuda_runtime_api.h>

#include "probe.h"

extern "C" {

__attribute__((noinline, visibility("default"))) void* leak_large() {
  void* address = nullptr;
  MUST(cudaMalloc(&address, size_t{5} << 20));
  return address;
}

__attribute__((noinline, visibility("default"))) void* leak_small() {
  void* address = nullptr;
  MUST(cudaMalloc(&address, 1000));
  return address;
}

__attribute__((noinline, visibility("default"))) void* leak_many() {
  void* address = nullptr;
  MUST(cudaMalloc(&address, 4096));
  return address;
}

__attribute__((noinline, visibility("default"))) void* leak_page_locked() {
  void* address = nullptr;
  MUST(cudaMallocHost(&address, 3000));
  return address;
}

__attribute__((noinline, visibility("default"))) void* leak_mapped() {
  void* address = nullptr;
  MUST(cudaHostAlloc(&address, 70000, cudaHostAllocMapped));
  return address;
}

__attribute__((noinline, visibility("default"))) void* leak_managed() {
  void* address = nullptr;
  MUST(cudaMallocManaged(&address, 5000));
  return address;
}

__attribute__((noinline, visibility("default"))) void* leak_stream_ordered(cudaStream_t stream) {
  void* address = nullptr;
  MUST(cudaMallocAsync(&address, 6000, stream));
  return address;
}

}  // extern "C"

// Of each kind all but two are freed, by every call that can.
void leak_other_kinds() {
  cudaStream_t stream = nullptr;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (volatile int i = 0; i < 2; i = i + 1) {  // volatile: one call site of each
    leak_page_locked();
    leak_mapped();
    leak_managed();
    leak_stream_ordered(stream);
  }
  for (int i = 0; i < 20; ++i) {
    MUST(cudaFreeHost(leak_page_locked()));
    MUST(cudaFreeHost(leak_mapped()));
    MUST(cudaFree(leak_managed()));
    MUST(cudaFreeAsync(leak_stream_ordered(stream), stream));
    void* const last = leak_stream_ordered(stream);
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaFree(last));
  }
  // Nodes of a graph are no memory yet.
  cudaGraph_t graph = nullptr;
  MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  MUST(cudaFreeAsync(leak_stream_ordered(stream), stream));
  leak_stream_ordered(stream);
  MUST(cudaStreamEndCapture(stream, &graph));
  MUST(cudaGraphDestroy(graph));
}

int main(int argc, char** argv) {
  const long many = probe::number(argc, argv, "many", 0);
  for (int i = 0; i < 6; ++i) {
    void* address = leak_large();
    if (i % 2 == 0) MUST(cudaFree(address));  // half of them
  }
  leak_small();
  for (int i = 0; i < 100; ++i) MUST(cudaFree(leak_small()));
  for (long i = 0; i < many; ++i) leak_many();
  if (probe::number(argc, argv, "kinds", 0) != 0) leak_other_kinds();
  if (probe::number(argc, argv, "reset", 0) != 0) MUST(cudaDeviceReset());
  std::printf("done\n");
  return 0;
}
