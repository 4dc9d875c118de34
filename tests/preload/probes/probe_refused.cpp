// SPDX-License-Identifier: Apache-2.0
// Calls that run out of memory, and what that does to the memory that lies idle. case=bounded: a
// pool with a limit of its own is at that limit, with idle= MiB freed before and blocks of block=
// MiB; current=1: as the device's current pool. case=small: a stream of a larger device than the
// current one. case=pinned, page_tables: page-locked memory. case=launch: a launch that is refused
// for good (by= graph or kernel), while the GPU works on freed memory and another thread frees.
#include <cuda.h>

#include <chrono>
#include <string>
#include <thread>
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
  void* allocated = nullptr;
  for (int i = 0; i < 3; ++i) {
    probe::say("allocated", cuMemHostAlloc(&allocated, 2 * kMiB, 0));
    probe::say("registered", cuMemHostRegister(host, sizeof host, 0));
    probe::say("created", cuMemCreate(&handle, 2 * kMiB, &properties, 0));
  }
  return 0;
}

// The device is full of idle memory, so that page tables may be what is missing.
int page_tables() {
  const Gpu gpu;
  std::vector<CUdeviceptr> blocks;
  CUdeviceptr block = 0;
  while (cuMemAlloc(&block, 4 * kMiB) == CUDA_SUCCESS) blocks.push_back(block);
  for (const CUdeviceptr each : blocks) MUST(cuMemFree(each));
  MUST(cuCtxSynchronize());
  void* allocated = nullptr;
  probe::say("allocated", cuMemHostAlloc(&allocated, 2 * kMiB, 0));
  return 0;
}

CUgraphExec graph_of(CUdeviceptr target, CUstream stream) {
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuMemsetD8Async(target, 1, probe::kBytes, stream));
  MUST(cuStreamEndCapture(stream, &graph));
  MUST(cuGraphInstantiate(&executable, graph, 0));
  return executable;
}

int launch(bool by_graph) {
  const Gpu gpu;
  warm_up();
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  void* host = nullptr;
  CUdeviceptr kept = 0;
  CUdeviceptr other = 0;
  CUdeviceptr in_use = 0;
  MUST(cuCtxGetCurrent(&context));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuMemHostAlloc(&host, probe::kBytes, 0));
  MUST(cuMemAlloc(&kept, probe::kBytes));
  MUST(cuMemAlloc(&other, probe::kBytes));
  MUST(cuMemAlloc(&in_use, 64 * kMiB));
  const CUgraphExec graph = graph_of(kept, stream);
  gpu.work(2'000'000'000);
  MUST(cuMemFree(in_use));
  CUresult refused = CUDA_SUCCESS;
  std::thread launcher([&] {
    MUST(cuCtxSetCurrent(context));
    std::uint64_t words = 16;
    void* arguments[] = {&host, &kept, &words};
    refused = by_graph
                  ? cuGraphLaunch(graph, stream)
                  : cuLaunchCooperativeKernel(gpu.copy, 1, 1, 1, 32, 1, 1, 0, stream, arguments);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  MUST(cuMemFree(other));
  probe::say("free waited", cuStreamQuery(gpu.stream) == CUDA_SUCCESS);
  launcher.join();
  probe::say("launch", refused);
  MUST(cuCtxSynchronize());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string which = probe::argument(argc, argv, "case", "bounded");
  if (which == "small") return larger_device();
  if (which == "pinned") return pinned();
  if (which == "page_tables") return page_tables();
  if (which == "launch") return launch(probe::argument_is(argc, argv, "by", "graph"));
  return bounded(probe::number(argc, argv, "current", 0) != 0, probe::number(argc, argv, "idle", 0),
                 probe::number(argc, argv, "block", 8));
}
