// SPDX-License-Identifier: Apache-2.0
// The real cuMemAlloc and cuMemFree, allowed during captures of the program.
#include "engine/backend/malloc_backend.h"

#include "cuda/scopes.h"

namespace cupool::engine {

CUresult MallocBackend::allocate(StreamSource&, std::uint64_t capacity, CUdeviceptr* address) {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  return driver_.cuMemAlloc_v2(address, capacity);
}

bool MallocBackend::release(StreamSource& context, CUdeviceptr address) {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context.handle());
  return scope.ok() && driver_.cuMemFree_v2(address) == CUDA_SUCCESS;
}

}  // namespace cupool::engine
