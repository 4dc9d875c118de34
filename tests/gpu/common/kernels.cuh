// SPDX-License-Identifier: Apache-2.0
// The test kernels on a real GPU: same names and parameters as the simulated device's built-in
// ones, so that one driver-interface program runs on both. Every word is written and checked by
// the GPU itself: reading back on the host would order what the tests want unordered.
#pragma once

#include <cstdint>

extern "C" __global__ void stamp_u32(uint32_t* words, uint64_t count, uint32_t value) {
  const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    words[i] = value;
  }
}

extern "C" __global__ void check_u32(const uint32_t* words, uint64_t count, uint32_t value,
                                     uint64_t* mismatches) {
  const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  uint64_t wrong = 0;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    // Volatile: a cached or assumed value would hide a foreign write.
    if (*static_cast<const volatile uint32_t*>(words + i) != value) ++wrong;
  }
  if (wrong != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(mismatches),
              static_cast<unsigned long long>(wrong));
  }
}

extern "C" __global__ void spin_ns(uint64_t nanoseconds) {
  uint64_t begin = 0;
  uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

extern "C" __global__ void copy_u32(uint32_t* destination, const uint32_t* source, uint64_t count) {
  const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    destination[i] = source[i];
  }
}

// Lets a dependent launch begin at once, and writes late.
extern "C" __global__ void late_stamp_u32(uint32_t* words, uint64_t count, uint32_t value,
                                          uint64_t nanoseconds) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
  uint64_t begin = 0;
  uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
  const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    words[i] = value;
  }
}
