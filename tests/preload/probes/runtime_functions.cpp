// SPDX-License-Identifier: Apache-2.0
// A library that is linked to a runtime and tells the addresses of its functions: what a compiler
// within the program has from it.
#include <cuda_runtime.h>

#include <cstring>

extern "C" __attribute__((visibility("default"))) void* runtime_function(const char* name) {
#define KNOWN(function) \
  if (std::strcmp(name, #function) == 0) return reinterpret_cast<void*>(&function)
  KNOWN(cudaFree);
  KNOWN(cudaFreeHost);
  KNOWN(cudaDeviceSynchronize);
#undef KNOWN
  // Overloaded in C++.
  if (std::strcmp(name, "cudaMalloc") == 0) {
    return reinterpret_cast<void*>(static_cast<cudaError_t (*)(void**, size_t)>(&cudaMalloc));
  }
  if (std::strcmp(name, "cudaMallocHost") == 0) {
    using Function = cudaError_t (*)(void**, size_t);
    return reinterpret_cast<void*>(static_cast<Function>(&cudaMallocHost));
  }
  return nullptr;
}
