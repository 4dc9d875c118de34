// SPDX-License-Identifier: Apache-2.0
// A device with the simulator's kernels and a stream, for probes that use the driver interface. On
// a real GPU PROBE_KERNELS names the file of the kernels.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "probe.h"

namespace probe {

inline constexpr std::size_t kBytes = 4096;

struct Gpu {
  CUfunction spin = nullptr;
  CUfunction copy = nullptr;  // (u32* to, const u32* from, u64 words)
  CUstream stream = nullptr;

  Gpu() {
    CUcontext context = nullptr;
    CUmodule module = nullptr;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    const char* const file = std::getenv("PROBE_KERNELS");
    MUST(file == nullptr ? cuModuleLoadData(&module, "image") : cuModuleLoad(&module, file));
    MUST(cuModuleGetFunction(&spin, module, "spin_ns"));
    MUST(cuModuleGetFunction(&copy, module, "copy_u32"));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  }
  void work(std::uint64_t ns) const { work(ns, stream); }
  void work(std::uint64_t ns, CUstream on) const {
    void* arguments[] = {&ns};
    MUST(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, on, arguments, nullptr));
  }
};

inline void warm_up() {
  CUdeviceptr block = 0;
  for (int i = 0; i < 10; ++i) {
    MUST(cuMemAlloc(&block, kBytes));
    MUST(cuMemFree(block));
  }
}

}  // namespace probe
