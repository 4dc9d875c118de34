// SPDX-License-Identifier: Apache-2.0
// What the probes of a full device share: a stream that cupool serves, and work that goes on.
#pragma once

#include <cuda.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "probe.h"

namespace probe {

constexpr size_t kMiB = 1 << 20;

inline std::atomic<bool> over{false};        ///< ends the work of go_on_until_over()
inline std::chrono::seconds longest{86400};  ///< and so does this time

// The first allocations are the driver's.
inline CUstream make_served_stream() {
  CUstream stream = nullptr;
  CUdeviceptr block = 0;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 2; ++i) {
    MUST(cuMemAllocAsync(&block, kMiB, stream));
    MUST(cuMemFreeAsync(block, stream));
  }
  MUST(cuStreamSynchronize(stream));
  return stream;
}

inline void go_on_until_over(CUstream stream) {
  const auto wait = [](void*) {
    const auto start = std::chrono::steady_clock::now();
    while (!over && std::chrono::steady_clock::now() - start < longest) usleep(1000);
  };
  MUST(cuLaunchHostFunc(stream, wait, nullptr));
}

inline void go_on_for(uint64_t nanoseconds, CUstream stream) {
  CUmodule module = nullptr;
  CUfunction spin = nullptr;
  MUST(cuModuleLoadData(&module, ""));
  MUST(cuModuleGetFunction(&spin, module, "spin_ns"));
  void* arguments[] = {&nanoseconds};
  MUST(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
}

}  // namespace probe
