// SPDX-License-Identifier: Apache-2.0
// Pitched allocation gives the same pitches as the driver's own (contract 1 and 6): programs keep
// them in files and compute addresses from them.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <vector>

#include "probe.h"

int main() {
  uint64_t mallocs = 0;
  for (const size_t width :
       {1,   2,   31,  32,  33,   63,   64,   100,  127,  128,  129,   255,   256,   257,
        500, 511, 512, 513, 1000, 1024, 1025, 4000, 4096, 5000, 65535, 65536, 100001}) {
    void* p = nullptr;
    size_t pitch = 0;
    MUST(cudaMallocPitch(&p, &pitch, width, 7));
    CHECK(pitch >= width);
    CHECK(reinterpret_cast<uintptr_t>(p) % 512 == 0);
    // The last row is usable to its end.
    MUST(cudaMemset2D(p, pitch, 0x5A, width, 7));
    std::vector<unsigned char> host(width * 7);
    MUST(cudaMemcpy2D(host.data(), width, p, pitch, width, 7, cudaMemcpyDeviceToHost));
    CHECK(probe::count_other_bytes(host.data(), host.size(), 0x5A) == 0);
    MUST(cudaFree(p));
    ++mallocs;
    std::printf("width %zu pitch %zu\n", width, pitch);
  }
  for (const unsigned int element : {4u, 8u, 16u}) {
    for (const size_t width : {1, 100, 512, 1000}) {
      CUdeviceptr p = 0;
      size_t pitch = 0;
      MUST(cuMemAllocPitch(&p, &pitch, width, 3, element));
      MUST(cuMemFree(p));
      ++mallocs;
      std::printf("driver width %zu element %u pitch %zu\n", width, element, pitch);
    }
  }
  for (const size_t depth : {1, 5}) {
    cudaPitchedPtr p{};
    MUST(cudaMalloc3D(&p, cudaExtent{300, 10, depth}));
    std::printf("3D depth %zu pitch %zu xsize %zu ysize %zu\n", depth, p.pitch, p.xsize, p.ysize);
    MUST(cudaMemset(p.ptr, 1, p.pitch * p.ysize * depth));
    MUST(cudaFree(p.ptr));
    ++mallocs;
  }
  probe::print_counts(mallocs, mallocs);
  return 0;
}
