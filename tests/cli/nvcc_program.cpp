// SPDX-License-Identifier: Apache-2.0
// What nvcc 13.0 leaves in a program: the call that hands its GPU code to a shared runtime, symbols
// of the static runtime, or where they are stripped, its texts and the GPU code. It is not run.
#if defined(CLI_TEST_SHARED_RUNTIME)

// Weak, so that the simulated runtime, which does not have it, can be linked.
extern "C" __attribute__((weak)) void** __cudaRegisterFatBinary(void* code);  // NOLINT: its name
extern "C" int cudaMalloc(void** address, unsigned long bytes);

int main() {
  void* address = nullptr;
  return __cudaRegisterFatBinary(nullptr) == nullptr || cudaMalloc(&address, 1) != 0 ? 1 : 0;
}

#else

#include <cstdio>

#if defined(CLI_TEST_STATIC_RUNTIME)
extern "C" const char libcudart_static_0000ceb4406c099ce1e08fc8efe5dda0f3328a00[] = "a constant";
#else
__attribute__((section(".nv_fatbin"), used)) const char gpu_code[] =
    "Cuda compilation tools, release 13.0, V13.0.48";
#endif

int main(int argc, char**) {
  static const char* const texts[] = {"libcuda.so.1", "cuGetProcAddress_v2",
                                      "cudaErrorInvalidValue"};
  std::puts(texts[argc % 3]);
}

#endif
