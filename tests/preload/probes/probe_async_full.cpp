// SPDX-License-Identifier: Apache-2.0
// What the program has freed in a stream is wanted there, for a larger block, while work goes on
// that waits for what the program does next: work of that stream (case=own), or of another one
// behind a wait for that one (case=beside). The driver alone has it at once. The device has 256
// MiB.
#include <cuda.h>
#include <cupool_sim.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "probe.h"

namespace {

constexpr size_t kMiB = 1 << 20;
constexpr size_t kBlock = 40 * kMiB;
constexpr size_t kWanted = 120 * kMiB;  // more than is free beside four blocks

std::atomic<bool> over{false};

void* pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

// The first allocations are the driver's.
CUstream make_stream() {
  CUstream stream = nullptr;
  CUdeviceptr block = 0;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 2; ++i) {
    MUST(cuMemAllocAsync(&block, kMiB, stream));
    MUST(cuMemFreeAsync(block, stream));
  }
  MUST(cuStreamSynchronize(stream));
  return stream;
}

void work_for_long(CUstream stream) {
  const auto wait = [](void*) {
    while (!over) usleep(1000);
  };
  MUST(cuLaunchHostFunc(stream, wait, nullptr));
}

}  // namespace

int main(int argc, char** argv) {
  CUcontext context = nullptr;
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  const CUstream stream = make_stream();
  const CUstream other = make_stream();
  const bool beside = probe::argument_is(argc, argv, "case", "beside");
  CUdeviceptr kept = 0;  // as much may lie idle as the program had at its peak
  CUdeviceptr blocks[4] = {};
  MUST(cuMemAllocAsync(&kept, 8 * kMiB, stream));
  unsigned long long owner = 0;
  for (CUdeviceptr& block : blocks) {
    MUST(cuMemAllocAsync(&block, kBlock, stream));
    cupoolSimOwner(pointer(block), kBlock, ++owner);
  }
  work_for_long(beside ? other : stream);
  for (CUdeviceptr block : blocks) {
    MUST(cuMemsetD8Async(block, 1, 4096, stream));
    cupoolSimOwner(pointer(block), kBlock, 0);
    MUST(cuMemFreeAsync(block, stream));
  }
  if (beside) MUST(cuStreamSynchronize(stream));
  CUdeviceptr wanted = 0;
  const auto start = std::chrono::steady_clock::now();
  probe::say("allocated", cuMemAllocAsync(&wanted, kWanted, stream));
  // Out of memory, cupool waits for ten seconds.
  probe::say("at once", std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
  if (wanted != 0) {
    cupoolSimOwner(pointer(wanted), kWanted, ++owner);
    MUST(cuMemsetD8Async(wanted, 1, 4096, stream));
  }
  over = true;
  MUST(cuCtxSynchronize());
  MUST(cuMemFree(kept));
  if (wanted != 0) MUST(cuMemFree(wanted));
  MUST(cuDevicePrimaryCtxRelease(0));
  return 0;
}
