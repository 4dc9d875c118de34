// SPDX-License-Identifier: Apache-2.0
// Uncommon calls on stream-ordered memory that cupool serves (contract 12, CUPOOL_ASYNC=serve). The
// output is the driver's, too.
// mode= named (from a pool by its handle, and the functions of per-thread default streams),
// refused (calls that the driver refuses), fork (a child has no engine, nor a driver).
#include <cuda.h>
#include <cupool_sim.h>
#include <unistd.h>

#include <string>

#include "probe.h"
#include "probe_child.h"

extern "C" {
CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t bytes, CUstream stream);
CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                                              CUstream stream);
CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream);
}

namespace {

constexpr size_t kBytes = 64 << 10;

CUmemoryPool pool = nullptr;
CUstream stream = nullptr;

cuuint64_t used() {
  cuuint64_t bytes = 0;
  MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes));
  return bytes;
}

// Each way twice: the second time the memory is idle in the stream's cache.
void named() {
  for (int round = 0; round < 2; ++round) {
    CUdeviceptr blocks[4] = {};
    MUST(cuMemAllocAsync(&blocks[0], kBytes, stream));
    MUST(cuMemAllocFromPoolAsync(&blocks[1], kBytes, pool, stream));
    MUST(cuMemAllocAsync_ptsz(&blocks[2], kBytes, stream));
    MUST(cuMemAllocFromPoolAsync_ptsz(&blocks[3], kBytes, pool, stream));
    for (const CUdeviceptr& block : blocks) {
      for (const CUdeviceptr& other : blocks) CHECK(&block == &other || block != other);
      MUST(cuMemsetD8Async(block, 1, kBytes, stream));
    }
    probe::say("used", static_cast<long>(used()));
    MUST(cuMemFreeAsync(blocks[0], stream));
    MUST(cuMemFreeAsync_ptsz(blocks[1], stream));
    MUST(cuMemFreeAsync(blocks[2], stream));
    MUST(cuMemFreeAsync_ptsz(blocks[3], stream));
  }
  MUST(cuCtxSynchronize());
  probe::say("used", static_cast<long>(used()));
}

void refused() {
  CUdeviceptr block = 0;
  cuuint64_t value = 5;
  MUST(cuMemAllocAsync(&block, kBytes, stream));
  probe::say("no pool", cuMemAllocFromPoolAsync(&block, kBytes, nullptr, stream));
  probe::say("no pool", cuMemAllocFromPoolAsync_ptsz(&block, kBytes, nullptr, stream));
  probe::say("no value", cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, nullptr));
  probe::say("figure of no pool",
             cuMemPoolGetAttribute(nullptr, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
  probe::say("value", static_cast<long>(value));
  probe::say("trim of no pool", cuMemPoolTrimTo(nullptr, 0));
  MUST(cuMemFreeAsync(block, stream));
  cupoolSimFail("cuMemAllocFromPoolAsync:*=2,cuMemAllocFromPoolAsync_ptsz:*=2");
  probe::say("full", cuMemAllocFromPoolAsync(&block, 64 * kBytes, pool, stream));
  probe::say("full", cuMemAllocFromPoolAsync_ptsz(&block, 64 * kBytes, pool, stream));
  cupoolSimFail("");
  MUST(cuMemAllocFromPoolAsync_ptsz(&block, 64 * kBytes, pool, stream));
  MUST(cuMemFreeAsync(block, stream));
}

void in_child() {
  CUdeviceptr block = 0;
  CUdeviceptr idle = 0;
  cuuint64_t value = 0;
  MUST(cuMemAllocAsync(&block, kBytes, stream));
  MUST(cuMemAllocAsync(&idle, kBytes, stream));
  MUST(cuMemFreeAsync(idle, stream));
  MUST(cuCtxSynchronize());
  const pid_t child = fork();
  if (child == 0) {
    probe::say("allocate", cuMemAllocAsync(&idle, kBytes, stream));
    probe::say("of the pool", cuMemAllocFromPoolAsync(&idle, kBytes, pool, stream));
    probe::say("free", cuMemFreeAsync(block, stream));
    probe::say("used", cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
    probe::say("trim", cuMemPoolTrimTo(pool, 0));
    _exit(0);
  }
  probe::say("child", probe::wait_for(child));
  MUST(cuMemFreeAsync(block, stream));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = probe::argument(argc, argv, "mode", "named");
  CUcontext context = nullptr;
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  MUST(cuDeviceGetDefaultMemPool(&pool, 0));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  // The engine starts with the first allocation, which is the driver's.
  CUdeviceptr first = 0;
  MUST(cuMemAllocAsync(&first, kBytes, CU_STREAM_LEGACY));
  MUST(cuMemFreeAsync(first, CU_STREAM_LEGACY));
  MUST(cuCtxSynchronize());
  if (mode == "named") named();
  if (mode == "refused") refused();
  if (mode == "fork") in_child();
  MUST(cuCtxSynchronize());
  probe::say("complaints", static_cast<long>(cupoolSimComplaints()));
  return 0;
}
