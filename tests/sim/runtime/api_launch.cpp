// SPDX-License-Identifier: Apache-2.0
// Exported: libraries and launches. Nothing is registered by a compiler here, so kernels come from
// cudaLibraryGetKernel, whose handle cudaLaunchKernel accepts in place of a function's address.
#include "runtime/runtime.h"

namespace cupool::sim::runtime {

namespace {

template <bool pt>
cudaError_t launch(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                   cudaStream_t s) {
  const auto kernel = reinterpret_cast<CUfunction>(const_cast<void*>(function));
  return call(RT_PICK(cuLaunchKernel, cuLaunchKernel_ptsz), kernel, grid.x, grid.y, grid.z, block.x,
              block.y, block.z, static_cast<unsigned>(shared), s, arguments, nullptr);
}

}  // namespace

RT_DEFINE(cudaLibraryLoadData,
          (cudaLibrary_t * library, const void* code, cudaJitOption*, void**, unsigned int,
           cudaLibraryOption*, void**, unsigned int),
          call(driver().cuLibraryLoadData, reinterpret_cast<CUlibrary*>(library), code, nullptr,
               nullptr, 0u, nullptr, nullptr, 0u))
RT_DEFINE(cudaLibraryUnload, (cudaLibrary_t library),
          call(driver().cuLibraryUnload, reinterpret_cast<CUlibrary>(library)))
RT_DEFINE(cudaLibraryGetKernel, (cudaKernel_t * kernel, cudaLibrary_t library, const char* name),
          call(driver().cuLibraryGetKernel, reinterpret_cast<CUkernel*>(kernel),
               reinterpret_cast<CUlibrary>(library), name))
RT_TWINS(cudaLaunchKernel, cudaLaunchKernel_ptsz,
         (const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
          cudaStream_t s),
         launch<pt>(function, grid, block, arguments, shared, s))

}  // namespace cupool::sim::runtime
