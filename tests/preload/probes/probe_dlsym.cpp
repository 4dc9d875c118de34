// SPDX-License-Identifier: Apache-2.0
// A driver-interface program that opens libcuda.so.1 itself and asks dlsym for exact names
// (docs/design.md, route 2). Nothing of CUDA is linked.
#include <dlfcn.h>

#include "driver_work.h"
#include "probe.h"

int main(int argc, char** argv) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::printf("no driver\n");
    return probe::kFailedCall;
  }
  DriverFunctions driver;
#define DRIVER_FILL(name, exact)                                                          \
  driver.name##_fn = reinterpret_cast<decltype(driver.name##_fn)>(dlsym(library, exact)); \
  CHECK(driver.name##_fn != nullptr);
  DRIVER_FUNCTIONS(DRIVER_FILL)
#undef DRIVER_FILL
  // No route invents a function that the real resolver refused: these are in no driver.
  for (const char* name : {"cuMemAlloc_v3", "cuMemAllocNever", "cudaMalloc", ""}) {
    std::printf("dlsym(\"%s\") %s\n", name, dlsym(library, name) == nullptr ? "null" : "found");
  }
  // The old 32-bit function must stay the old one, never ours.
  void* old_alloc = dlsym(library, "cuMemAlloc");
  std::printf("old cuMemAlloc %s\n", old_alloc == nullptr ? "null"
                                     : old_alloc == reinterpret_cast<void*>(driver.cuMemAlloc_fn)
                                         ? "replaced"
                                         : "kept");
  return report_driver_work(
      run_driver_work(driver, static_cast<int>(probe::number(argc, argv, "iterations", 30))));
}
