// SPDX-License-Identifier: Apache-2.0
// What the parts of driver_facts.cpp share: a failing call ends the program; the clock; a kernel
// that takes its time.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

inline void must(CUresult result, const char* call, int line) {
  if (result == CUDA_SUCCESS) return;
  std::printf("line %d: %s answered %d\n", line, call, static_cast<int>(result));
  std::exit(1);
}
#define MUST(call) must(call, #call, __LINE__)

inline double now_us() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

inline CUfunction spin = nullptr;  // spin_ns(u64 ns) of kernels.cu

inline void spin_on(CUstream stream, unsigned long long ns) {
  void* parameters[] = {&ns};
  MUST(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
}
