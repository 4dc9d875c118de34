// SPDX-License-Identifier: Apache-2.0
// A set-user-id program that has the library all the same, as by /etc/ld.so.preload: it is linked
// to it. secure=1: not one, but what the kernel says of it reads so. Prints whether the kernel, or
// this program in its place, says so, then allocates and frees.
#include <cuda.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/auxv.h>

#include "cupool/cupool.h"
#include "probe.h"

namespace {
bool pretended = false;
}

// Stands before libc's own.
extern "C" __attribute__((visibility("default"))) unsigned long getauxval(
    unsigned long type) noexcept {
  if (type == AT_SECURE && pretended) return 1;
  static const auto real =
      reinterpret_cast<unsigned long (*)(unsigned long)>(dlsym(RTLD_NEXT, "getauxval"));
  return real(type);
}

int main(int argc, char** argv) {
  pretended = probe::argument_is(argc, argv, "secure", "1");
  std::printf("secure %lu\n", getauxval(AT_SECURE));
  CUdevice device = 0;
  CUcontext context = nullptr;
  MUST(static_cast<int>(cuInit(0)));
  MUST(static_cast<int>(cuDeviceGet(&device, 0)));
  MUST(static_cast<int>(cuDevicePrimaryCtxRetain(&context, device)));
  MUST(static_cast<int>(cuCtxSetCurrent(context)));
  for (int i = 0; i < 20; ++i) {
    CUdeviceptr block = 0;
    MUST(static_cast<int>(cuMemAlloc(&block, 4096)));
    MUST(static_cast<int>(cuMemFree(block)));
  }
  std::printf("running %d\n", cupool_trim != nullptr && cupool_trim(-1, nullptr) == CUPOOL_OK);
  return 0;
}
