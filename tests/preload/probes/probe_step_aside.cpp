// SPDX-License-Identifier: Apache-2.0
// Memory after the program has made a green context (cupool steps aside): what was freed before,
// and what is freed later, by this thread and another, is there for the program's next allocations,
// with GPU work pending on all of it. step_aside copy=1: the frees come with copies to the host
// pending.
#include <cuda.h>

#include <cstring>
#include <thread>
#include <vector>

#include "owner.h"
#include "probe.h"

namespace {

constexpr size_t kMiB = 1 << 20;
constexpr size_t kTouched = 4096;  // bytes of a block that the GPU uses

CUcontext context = nullptr;
size_t total = 0;
size_t free_at_first = 0;
int printed = 0;

void fact(const char* what, int value) {
  std::printf("fact same.%d.%s=%d\n", ++printed, what, value);
}

std::vector<CUdeviceptr> fill(size_t most, size_t block_bytes) {
  std::vector<CUdeviceptr> blocks;
  for (size_t have = 0; have + block_bytes <= most; have += block_bytes) {
    CUdeviceptr block = 0;
    MUST(cuMemAlloc(&block, block_bytes));
    probe::own(reinterpret_cast<void*>(block), block_bytes);
    blocks.push_back(block);
  }
  return blocks;
}

// The last block stays live: its pool keeps the memory around it.
void free_but_one(const std::vector<CUdeviceptr>& blocks, size_t block_bytes, CUstream stream) {
  for (size_t i = 1; i < blocks.size(); ++i) {
    MUST(cuMemsetD8Async(blocks[i], 1, kTouched, stream));
    probe::disown(reinterpret_cast<void*>(blocks[i]), block_bytes);
    MUST(cuMemFree(blocks[i]));
  }
}

void step_aside() {
  CUgreenCtx green = nullptr;
  CUdevResource resource{};
  CUdevResourceDesc description{};
  if (cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS) {
    MUST(cuDevResourceGenerateDesc(&description, &resource, 1));
  }
  cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM);
}

// What is called free and what can be had are the same.
void print_memory(size_t live) {
  size_t free_bytes = 0;
  MUST(cuMemGetInfo(&free_bytes, &total));
  fact("misses_more_than_is_live_and_192_MiB", free_bytes + live + 192 * kMiB < free_at_first);
  CUdeviceptr most = 0;
  const int code = cuMemAlloc(&most, total / 2);
  fact("half_of_the_device", code);
  if (code != 0) return;
  MUST(cuMemsetD8Async(most, 2, kTouched, nullptr));
  MUST(cuMemFree(most));
}

void copies(CUstream stream) {
  constexpr size_t kBytes = 64 << 10;
  unsigned char* host = nullptr;
  MUST(cuMemHostAlloc(reinterpret_cast<void**>(&host), kBytes, 0));
  std::memset(host, 0, kBytes);
  for (const size_t bytes : {kBytes, 4 * kMiB}) {
    const std::vector<CUdeviceptr> blocks = fill(2 * bytes, bytes);
    step_aside();
    for (const CUdeviceptr block : blocks) {
      MUST(cuMemsetD8Async(block, 7, bytes, stream));
      MUST(cuMemcpyDtoHAsync(host, block, kBytes, stream));
      probe::disown(reinterpret_cast<void*>(block), bytes);
      MUST(cuMemFree(block));
      fact("wrong_bytes_after_the_free",
           static_cast<int>(probe::count_other_bytes(host, kBytes, 7)));
      std::memset(host, 0, kBytes);
    }
  }
}

void memory(CUstream stream) {
  constexpr size_t kLarge = 32 * kMiB;
  constexpr size_t kSmall = kMiB;
  std::vector<CUdeviceptr> before = fill(total / 10 * 6, kLarge);
  std::vector<CUdeviceptr> small = fill(total / 10, kSmall);
  free_but_one(before, kLarge, stream);
  std::thread([&] {
    MUST(cuCtxSetCurrent(context));
    free_but_one(small, kSmall, stream);
    free_but_one(fill(total / 10, kLarge), kLarge, stream);
  }).join();
  const std::vector<CUdeviceptr> after = fill(total / 10 * 6, kLarge);
  const std::vector<CUdeviceptr> small_after = fill(total / 10, kSmall);
  step_aside();
  print_memory(total / 10 * 7);
  free_but_one(after, kLarge, stream);
  std::thread([&] {
    MUST(cuCtxSetCurrent(context));
    free_but_one(small_after, kSmall, stream);
  }).join();
  for (int i = 0; i < 2; ++i) print_memory(0);
  fact("freed_twice", cuMemFree(after[1]));
  for (const CUdeviceptr block : {before[0], small[0], after[0], small_after[0]}) {
    MUST(cuMemFree(block));
  }
  print_memory(0);
}

}  // namespace

int main(int argc, char** argv) {
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  MUST(cuMemGetInfo(&free_at_first, &total));
  CUstream stream = nullptr;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  if (probe::number(argc, argv, "copy", 0) != 0) {
    copies(stream);
  } else {
    memory(stream);
  }
  MUST(cuCtxSynchronize());
  return 0;
}
