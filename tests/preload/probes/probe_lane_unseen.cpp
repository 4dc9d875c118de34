// SPDX-License-Identifier: Apache-2.0
// A program in one lane, part of whose work is not seen: mode=work (a plugin opened with
// RTLD_DEEPBIND keeps another stream busy), mode=name (the program looks up name=, which leads to
// such work) or mode=library (it loads a library of the video decoder's name). Prints whether a
// freed block came back with work pending, before and after.
#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "probe.h"

namespace {

constexpr size_t kBytes = 256 << 10;

std::atomic<bool> stopped{false};
void wait_for_stop(void*) {
  while (!stopped) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool comes_back() {
  CUdeviceptr block = 0;
  CUdeviceptr next = 0;
  MUST(cuMemAlloc(&block, kBytes));
  MUST(cuMemsetD8Async(block, 1, kBytes, CU_STREAM_LEGACY));
  MUST(cuMemFree(block));
  MUST(cuMemAlloc(&next, kBytes));
  MUST(cuMemFree(next));
  return next == block;
}

// Until it does not, or for a while.
bool still_comes_back() {
  for (int i = 0; i < 2000; ++i) {
    if (!comes_back()) return false;
    usleep(1000);
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = probe::argument(argc, argv, "mode", "work");
  const std::string program = argv[0];
  const std::string folder = program.substr(0, program.rfind('/') + 1);
  CUcontext context = nullptr;
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  for (int i = 0; i < 64; ++i) comes_back();
  MUST(cuCtxSynchronize());
  const bool before = comes_back();
  CUstream other = nullptr;
  if (mode == "work") {
    void* const plugin = dlopen((folder + "liblane_plugin.so").c_str(), RTLD_NOW | RTLD_DEEPBIND);
    if (plugin == nullptr) std::printf("%s\n", dlerror());
    CHECK(plugin != nullptr);
    using Call = CUresult (*)(CUstream, CUhostFn);
    const auto call = reinterpret_cast<Call>(dlsym(plugin, "unseen_call"));
    CHECK(call != nullptr);
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    MUST(call(other, wait_for_stop));
  } else if (mode == "name") {
    dlsym(RTLD_DEFAULT, probe::argument(argc, argv, "name", ""));
  } else {
    CHECK(dlopen((folder + "unseen/libnvcuvid.so.1").c_str(), RTLD_NOW) != nullptr);
  }
  const bool after = mode == "work" ? still_comes_back() : comes_back();
  std::fprintf(stderr, "before %d after %d\n", before, after);
  stopped = true;
  MUST(cuCtxSynchronize());
  MUST(cuDevicePrimaryCtxRelease(0));
  return 0;
}
