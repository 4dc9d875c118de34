// SPDX-License-Identifier: Apache-2.0
// Calls that run out of memory, and what that does to the memory that lies idle. case=bounded: a
// pool with a limit of its own is at that limit, with idle= MiB freed before and blocks of block=
// MiB; current=1: as the device's current pool. case=small: a stream of a larger device than the
// current one. case=pinned: page-locked memory.
#include <cuda.h>

#include <string>
#include <vector>

#include "probe.h"
#include "probe_gpu.h"

namespace {

using probe::Gpu;
using probe::warm_up;

constexpr size_t kMiB = 1 << 20;

// Memory of the program's that it has freed, in blocks of 40 MiB.
void leave_idle(long mib) {
  constexpr size_t kBlock = 40 * kMiB;
  std::vector<CUdeviceptr> blocks(static_cast<size_t>(mib) * kMiB / kBlock);
  for (CUdeviceptr& block : blocks) MUST(cuMemAlloc(&block, kBlock));
  for (const CUdeviceptr block : blocks) MUST(cuMemFree(block));
  MUST(cuCtxSynchronize());
}

int bounded(bool is_current, long idle, long block_mib) {
  const Gpu gpu;
  leave_idle(idle);
  CUmemPoolProps properties = {};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.maxSize = 256 * kMiB;
  CUmemoryPool pool = nullptr;
  MUST(cuMemPoolCreate(&pool, &properties));
  if (is_current) MUST(cuDeviceSetMemPool(0, pool));
  const size_t bytes = static_cast<size_t>(block_mib) * kMiB;
  std::vector<CUdeviceptr> blocks;
  int refused = 0;
  for (int i = 0; i < 40; ++i) {
    CUdeviceptr block = 0;
    const CUresult result = is_current ? cuMemAllocAsync(&block, bytes, gpu.stream)
                                       : cuMemAllocFromPoolAsync(&block, bytes, pool, gpu.stream);
    if (result == CUDA_SUCCESS) blocks.push_back(block);
    refused += result == CUDA_ERROR_OUT_OF_MEMORY ? 1 : 0;
  }
  probe::say("served", static_cast<long>(blocks.size()));
  probe::say("refused", refused);
  for (const CUdeviceptr block : blocks) MUST(cuMemFreeAsync(block, gpu.stream));
  MUST(cuStreamSynchronize(gpu.stream));
  return 0;
}

int larger_device() {
  CUcontext contexts[2] = {};
  CUstream stream = nullptr;
  MUST(cuInit(0));
  for (int device = 0; device < 2; ++device) {
    MUST(cuDevicePrimaryCtxRetain(&contexts[device], device));
    MUST(cuCtxSetCurrent(contexts[device]));
    warm_up();
  }
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  leave_idle(960);
  MUST(cuCtxSetCurrent(contexts[0]));
  CUdeviceptr block = 0;
  probe::say("in the stream", cuMemAllocAsync(&block, 700 * kMiB, stream));
  if (block != 0) MUST(cuMemFreeAsync(block, stream));
  MUST(cuStreamSynchronize(stream));
  return 0;
}

// Refused by injection.
int pinned() {
  const Gpu gpu;
  leave_idle(200);
  static char host[16384];
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  CUmemGenericAllocationHandle handle = 0;
  for (int i = 0; i < 3; ++i) {
    probe::say("registered", cuMemHostRegister(host, sizeof host, 0));
    probe::say("created", cuMemCreate(&handle, 2 * kMiB, &properties, 0));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string which = probe::argument(argc, argv, "case", "bounded");
  if (which == "small") return larger_device();
  if (which == "pinned") return pinned();
  return bounded(probe::number(argc, argv, "current", 0) != 0, probe::number(argc, argv, "idle", 0),
                 probe::number(argc, argv, "block", 8));
}
