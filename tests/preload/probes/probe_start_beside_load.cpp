// SPDX-License-Identifier: Apache-2.0
// The first allocations of a process, by a thread and by the constructor of a library that is
// loaded meanwhile (loading_library.cpp): the dynamic linker holds its lock around constructors.
#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "probe.h"
#include "probe_gpu.h"

namespace {

std::atomic<bool> loading{false};
std::atomic<int> other_thread{0};  // that allocates
std::atomic<bool> has_allocated{false};
CUcontext context = nullptr;

void allocate_and_free() {
  CUdeviceptr memory = 0;
  MUST(cuCtxSetCurrent(context));
  MUST(cuMemAlloc(&memory, 4096));
  MUST(cuMemFree(memory));
}

bool sleeps(int thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name = text.rfind(')');
  return name != std::string::npos && text.size() > name + 2 && text[name + 2] == 'S';
}

}  // namespace

// Allocates once the other thread has done so, or waits for what this one holds.
extern "C" __attribute__((visibility("default"))) void while_loading() {
  loading = true;
  while (!has_allocated && (other_thread == 0 || !sleeps(other_thread))) std::this_thread::yield();
  allocate_and_free();
}

int main(int, char** argv) {
  const std::string program = argv[0];
  CUdeviceptr too_early = 0;
  CHECK(cuMemAlloc(&too_early, 4096) == CUDA_ERROR_NOT_INITIALIZED);
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  std::thread allocates([] {
    while (!loading) std::this_thread::yield();
    other_thread = static_cast<int>(syscall(SYS_gettid));
    allocate_and_free();
    has_allocated = true;
  });
  const std::string library = program.substr(0, program.rfind('/') + 1) + "libloading_library.so";
  CHECK(dlopen(library.c_str(), RTLD_NOW) != nullptr);
  allocates.join();
  std::printf("done\n");
  probe::print_counts(2, 2);
  return 0;
}
