// SPDX-License-Identifier: Apache-2.0
// A program that is not preloaded into but opens the library itself (library=), allocates by its
// functions, and closes it while threads of the library look into the program's contexts. Then, by
// mode=: exit, quick_exit, fork (before it leaves), again (it opens the library once more, and
// frees what it had before).
#include <cuda.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "probe.h"

namespace {

void* open_library(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::printf("%s\n", dlerror());
  CHECK(library != nullptr);
  return library;
}

template <typename Function>
Function* function_of(void* library, const char* name) {
  void* const found = dlsym(library, name);
  CHECK(found != nullptr);
  return reinterpret_cast<Function*>(found);
}

void use_the_device(void* driver) {
  CUdevice device = 0;
  CUcontext context = nullptr;
  MUST(function_of<CUresult(unsigned)>(driver, "cuInit")(0));
  MUST(function_of<CUresult(CUdevice*, int)>(driver, "cuDeviceGet")(&device, 0));
  MUST(function_of<CUresult(CUcontext*, CUdevice)>(driver, "cuDevicePrimaryCtxRetain")(&context,
                                                                                       device));
  MUST(function_of<CUresult(CUcontext)>(driver, "cuCtxSetCurrent")(context));
}

CUdeviceptr allocate(void* library) {
  CUdeviceptr block = 0;
  MUST(function_of<CUresult(CUdeviceptr*, size_t)>(library, "cuMemAlloc_v2")(&block, 5000));
  return block;
}

void release(void* library, CUdeviceptr block) {
  MUST(function_of<CUresult(CUdeviceptr)>(library, "cuMemFree_v2")(block));
}

void allocate_and_free(void* library, int pairs) {
  for (int i = 0; i < pairs; ++i) release(library, allocate(library));
}

// Long enough for every thread of the library to run many times.
void let_threads_run() {
  usleep(100'000);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = probe::argument(argc, argv, "mode", "exit");
  const char* const path = probe::argument(argc, argv, "library", "libcupool.so");
  use_the_device(open_library("libcuda.so.1"));
  void* library = open_library(path);
  constexpr int kPairs = 20;
  allocate_and_free(library, kPairs);
  const CUdeviceptr kept = allocate(library);
  let_threads_run();
  MUST(dlclose(library));
  let_threads_run();
  if (mode == "again") {
    library = open_library(path);
    allocate_and_free(library, kPairs);
    release(library, kept);
    probe::print_counts(2 * kPairs + 1, 2 * kPairs + 1);
    return 0;
  }
  if (mode == "fork") {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
  }
  probe::print_counts(kPairs + 1, kPairs);
  std::fflush(stdout);
  if (mode == "quick_exit") std::quick_exit(0);
  return 0;
}
