// SPDX-License-Identifier: Apache-2.0
// Green contexts (contract 10): memory of before and after, freed with one current, with work of
// its streams pending; the end of the last one ends the primary context, whose addresses then come
// again.
#include <cuda.h>

#include <vector>

#include "owner.h"
#include "probe.h"

namespace {

constexpr size_t kBytes = 4 << 20;
constexpr size_t kBlocks = 24;
constexpr size_t kMost = 24 << 20;  // that may be missing; more stays behind in the first life

CUdeviceptr allocate() {
  CUdeviceptr block = 0;
  MUST(cuMemAlloc(&block, kBytes));
  probe::own(reinterpret_cast<void*>(block), kBytes);
  return block;
}

void release(CUdeviceptr block) {
  probe::disown(reinterpret_cast<void*>(block), kBytes);
  MUST(cuMemFree(block));
}

CUgreenCtx make_green() {
  CUdevResource all{};
  CUdevResourceDesc description{};
  CUgreenCtx green = nullptr;
  MUST(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
  MUST(cuDevResourceGenerateDesc(&description, &all, 1));
  MUST(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  return green;
}

// Each block is used in both streams, and freed with either context current.
void use(CUcontext current, CUcontext other, CUstream own, CUstream of_green) {
  for (size_t i = 0; i < kBlocks; ++i) {
    MUST(cuCtxSetCurrent(i % 2 == 0 ? current : other));
    const CUdeviceptr block = allocate();
    MUST(cuMemsetD8Async(block, 1, kBytes, i % 3 == 0 ? own : of_green));
    MUST(cuCtxSetCurrent(i % 4 < 2 ? other : current));
    release(block);
  }
  MUST(cuCtxSetCurrent(current));
}

void one_life(bool ends_by_green) {
  CUcontext primary = nullptr;
  MUST(cuDevicePrimaryCtxRetain(&primary, 0));
  MUST(cuCtxSetCurrent(primary));
  CUstream own = nullptr;
  MUST(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
  std::vector<CUdeviceptr> before;
  for (size_t i = 0; i < kBlocks; ++i) before.push_back(allocate());
  const CUgreenCtx green = make_green();
  CUcontext converted = nullptr;
  CUstream of_green = nullptr;
  MUST(cuCtxFromGreenCtx(&converted, green));
  MUST(cuGreenCtxStreamCreate(&of_green, green, CU_STREAM_NON_BLOCKING, 0));
  use(primary, converted, own, of_green);
  // Half of them stay, and go with the context.
  for (size_t i = 0; i < kBlocks / 2; ++i) {
    MUST(cuMemsetD8Async(before[i], 2, kBytes, of_green));
    MUST(cuCtxSetCurrent(i % 2 == 0 ? primary : converted));
    release(before[i]);
  }
  for (size_t i = kBlocks / 2; i < kBlocks; ++i) {
    probe::disown(reinterpret_cast<void*>(before[i]), kBytes);
  }
  MUST(cuCtxSetCurrent(primary));
  MUST(cuStreamDestroy(of_green));
  if (ends_by_green) MUST(cuDevicePrimaryCtxRelease(0));
  MUST(cuGreenCtxDestroy(green));
  if (!ends_by_green) MUST(cuDevicePrimaryCtxRelease(0));
  unsigned flags = 0;
  int active = 0;
  MUST(cuDevicePrimaryCtxGetState(0, &flags, &active));
  std::printf("the primary context is there: %d\n", active);
  MUST(cuCtxSetCurrent(nullptr));
}

// What has the address of a block of an earlier life is the driver's.
void next_life() {
  CUcontext primary = nullptr;
  MUST(cuDevicePrimaryCtxRetain(&primary, 0));
  MUST(cuCtxSetCurrent(primary));
  std::vector<CUdeviceptr> blocks;
  for (size_t i = 0; i < 2 * kBlocks; ++i) blocks.push_back(allocate());
  for (const CUdeviceptr block : blocks) MUST(cuMemsetD8Async(block, 3, kBytes, nullptr));
  for (size_t i = 0; i < blocks.size(); i += 2) release(blocks[i]);
  MUST(cuCtxSynchronize());
  int wrong = 0;
  for (size_t i = 1; i < blocks.size(); i += 2) {
    unsigned char last = 0;
    MUST(cuMemcpyDtoH(&last, blocks[i] + kBytes - 1, 1));
    wrong += last != 3;
    release(blocks[i]);
  }
  std::printf("wrong bytes: %d\n", wrong);
  size_t free_bytes = 0;
  size_t total = 0;
  MUST(cuMemGetInfo(&free_bytes, &total));
  std::printf("memory is missing: %d\n", free_bytes + kMost < total);
  MUST(cuCtxSetCurrent(nullptr));
  MUST(cuDevicePrimaryCtxRelease(0));
}

}  // namespace

int main() {
  MUST(cuInit(0));
  one_life(true);
  next_life();
  for (const bool by_green : {false, true}) one_life(by_green);
  next_life();
  return 0;
}
