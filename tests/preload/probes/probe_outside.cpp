// SPDX-License-Identifier: Apache-2.0
// Memory that others than the program's streams know (contract 8), freed and asked for again.
// mode=attribute: given SYNC_MEMOPS. mode=descriptor: exported as a descriptor, which stays open.
#include <cuda.h>
#include <unistd.h>

#include <vector>

#include "probe.h"

namespace {

constexpr size_t kSizes[] = {4096, 1 << 20, 8 << 20};

unsigned attribute_of(CUdeviceptr block) {
  unsigned value = 0;
  MUST(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block));
  return value & 1;
}

void attribute() {
  for (const size_t size : kSizes) {
    unsigned still_set = 0;
    for (int i = 0; i < 50; ++i) {
      CUdeviceptr block = 0;
      MUST(cuMemAlloc(&block, size));
      still_set += attribute_of(block);
      const unsigned on = 1;
      MUST(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block));
      MUST(cuMemFree(block));
    }
    std::printf("%zu: attribute of an earlier owner %u times\n", size, still_set);
  }
}

struct Exported {
  CUdeviceptr block;
  size_t size;
  int file;
};

void descriptor() {
  std::vector<Exported> exported;
  for (const size_t size : kSizes) {
    for (int i = 0; i < 3; ++i) {
      Exported one{0, size, -1};
      MUST(cuMemAlloc(&one.block, size));
      MUST(cuMemGetHandleForAddressRange(&one.file, one.block, size,
                                         CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
      CHECK(one.file >= 0);
      exported.push_back(one);
    }
  }
  for (const Exported& one : exported) MUST(cuMemFree(one.block));
  std::printf("once more: %d\n", static_cast<int>(cuMemFree(exported[0].block)));
  MUST(cuCtxSynchronize());
  int again = 0;
  for (const size_t size : kSizes) {
    std::vector<CUdeviceptr> blocks(20);
    for (CUdeviceptr& block : blocks) {
      MUST(cuMemAlloc(&block, size));
      for (const Exported& one : exported) {
        again += block < one.block + one.size && one.block < block + size;
      }
    }
    for (const CUdeviceptr block : blocks) MUST(cuMemFree(block));
  }
  size_t free_bytes = 0;
  size_t total = 0;
  MUST(cuMemGetInfo(&free_bytes, &total));
  // All that is called free can be had, but for the steps of pools with live blocks.
  CUdeviceptr rest = 0;
  std::printf("handed out again %d, the rest: %d\n", again,
              static_cast<int>(cuMemAlloc(&rest, free_bytes - (64 << 20))));
  for (const Exported& one : exported) close(one.file);
}

}  // namespace

int main(int argc, char** argv) {
  CUcontext context = nullptr;
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  if (probe::argument_is(argc, argv, "mode", "descriptor")) {
    descriptor();
  } else {
    attribute();
  }
  return 0;
}
