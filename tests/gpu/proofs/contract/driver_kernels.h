// SPDX-License-Identifier: Apache-2.0
// The test kernels in one context of the driver interface, loaded from CUPOOL_TEST_MODULE: what a
// program with contexts of its own has to do for each of them.
#pragma once

#include <cuda.h>

#include "contract.h"

namespace contract {

class DriverKernels {
 public:
  // Into the current context, which also destroys it.
  void load() {
    const char* path = std::getenv("CUPOOL_TEST_MODULE");
    if (path == nullptr) {
      std::fprintf(stderr, "CUPOOL_TEST_MODULE must name the module of kernels.cu\n");
      std::_Exit(2);
    }
    MUST(cuModuleLoad(&module_, path));
    MUST(cuModuleGetFunction(&stamp_, module_, "stamp_u32"));
    MUST(cuModuleGetFunction(&check_, module_, "check_u32"));
    MUST(cuModuleGetFunction(&spin_, module_, "spin_ns"));
  }

  int stamp(CUdeviceptr words, uint64_t count, uint32_t value, CUstream stream = nullptr) const {
    void* arguments[] = {&words, &count, &value};
    return launch(stamp_, 64, 256, stream, arguments);
  }

  int check(CUdeviceptr words, uint64_t count, uint32_t value, CUdeviceptr mismatches,
            CUstream stream = nullptr) const {
    void* arguments[] = {&words, &count, &value, &mismatches};
    return launch(check_, 64, 256, stream, arguments);
  }

  int spin(uint64_t nanoseconds, CUstream stream = nullptr) const {
    void* arguments[] = {&nanoseconds};
    return launch(spin_, 1, 1, stream, arguments);
  }

 private:
  static int launch(CUfunction kernel, unsigned blocks, unsigned threads, CUstream stream,
                    void** arguments) {
    return cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr);
  }

  CUmodule module_ = nullptr;
  CUfunction stamp_ = nullptr;
  CUfunction check_ = nullptr;
  CUfunction spin_ = nullptr;
};

// CUDA 13 gave cuCtxCreate a parameter.
inline CUcontext create_context(CUdevice device) {
  CUcontext context = nullptr;
#if CUDA_VERSION >= 13000
  MUST(cuCtxCreate(&context, nullptr, 0, device));
#else
  MUST(cuCtxCreate(&context, 0, device));
#endif
  return context;
}

}  // namespace contract
