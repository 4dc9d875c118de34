// SPDX-License-Identifier: Apache-2.0
// A program whose work goes to its stream, or with open=legacy to the legacy stream, and that
// calls one more function of the driver: call=, its exported name. args= are the arguments, numbers
// or h (the stream), o (another one), c (the context), e (a launch's configuration with the
// stream), d (a copy from the context to none), p (room for an answer); what is left is 0. The
// driver may refuse the call. With blocks=0 the program allocates nothing.
#include <cuda.h>
#include <dlfcn.h>

#include <sstream>
#include <string>

#include "probe.h"

namespace {

constexpr int kArguments = 12;

template <typename Function>
Function named(void* library, const char* symbol) {
  void* const function = dlsym(library, symbol);
  CHECK(function != nullptr);
  return reinterpret_cast<Function>(function);
}

}  // namespace

int main(int argc, char** argv) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  CHECK(library != nullptr);
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUstream other = nullptr;
  CUdeviceptr block = 0;
  const auto create = named<decltype(&cuStreamCreate)>(library, "cuStreamCreate");
  MUST(named<decltype(&cuInit)>(library, "cuInit")(0));
  MUST(named<CUresult (*)(CUcontext*, CUdevice)>(library, "cuDevicePrimaryCtxRetain")(&context, 0));
  MUST(named<CUresult (*)(CUcontext)>(library, "cuCtxSetCurrent")(context));
  MUST(create(&stream, CU_STREAM_NON_BLOCKING));
  MUST(create(&other, CU_STREAM_NON_BLOCKING));
  if (probe::number(argc, argv, "blocks", 1) != 0) {
    MUST(named<CUresult (*)(CUdeviceptr*, size_t)>(library, "cuMemAlloc_v2")(&block, 4096));
  }
  const CUstream first = probe::argument_is(argc, argv, "open", "legacy") ? nullptr : stream;
  // Enough to show the main stream. Refused without a block, which does not matter.
  const auto fill =
      named<CUresult (*)(CUdeviceptr, unsigned char, size_t, CUstream)>(library, "cuMemsetD8Async");
  for (int i = 0; i < 64; ++i) fill(block, 1, 4096, first);

  CUlaunchConfig configuration{};
  configuration.hStream = stream;
  CUDA_MEMCPY3D_PEER copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcContext = context;
  CUresult answer[8] = {};
  std::uintptr_t arguments[kArguments] = {};
  std::istringstream given(probe::argument(argc, argv, "args", ""));
  std::string word;
  for (std::uintptr_t* next = arguments; std::getline(given, word, ','); ++next) {
    CHECK(next != arguments + kArguments);
    if (word == "h") {
      *next = reinterpret_cast<std::uintptr_t>(stream);
    } else if (word == "o") {
      *next = reinterpret_cast<std::uintptr_t>(other);
    } else if (word == "c") {
      *next = reinterpret_cast<std::uintptr_t>(context);
    } else if (word == "e") {
      *next = reinterpret_cast<std::uintptr_t>(&configuration);
    } else if (word == "d") {
      *next = reinterpret_cast<std::uintptr_t>(&copy);
    } else if (word == "p") {
      *next = reinterpret_cast<std::uintptr_t>(answer);
    } else {
      *next = std::stoul(word);
    }
  }
  using Any = int (*)(std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t,
                      std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t,
                      std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t);
  const char* const symbol = probe::argument(argc, argv, "call", "");
  const std::uintptr_t* const a = arguments;
  named<Any>(library, symbol)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10],
                              a[11]);
  std::printf("called %s\n", symbol);
  return 0;
}
