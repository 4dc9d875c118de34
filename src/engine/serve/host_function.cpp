// SPDX-License-Identifier: Apache-2.0
// Host functions run in a thread of the driver's own, which runs nothing else of the program
// (measured). So each thread is checked until it proves to be another one.
#include "engine/serve/host_function.h"

namespace cupool::engine {

// The driver refuses allocations, wrong addresses and the query of the current context there too.
CUresult refusal_in_host_function(const cuda::Driver& driver) {
  if (runs_no_host_functions()) return CUDA_SUCCESS;
  CUcontext current = nullptr;
  const CUresult result = driver.cuCtxGetCurrent(&current);
  if (result == CUDA_ERROR_NOT_PERMITTED) return result;
  detail::runs_no_host_functions = result == CUDA_SUCCESS;
  return CUDA_SUCCESS;
}

}  // namespace cupool::engine
