// SPDX-License-Identifier: Apache-2.0
// The real cuMemAlloc and cuMemFree, allowed during captures of the program. The driver's cuMemFree
// waits for all work of the context; a free in a stream that carries nothing else does not, and the
// memory is the device's again after a wait for that stream (docs/measurements).
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

bool MallocBackend::release_in_stream(StreamSource& context, CUdeviceptr address) {
  if (driver_.cuMemFreeAsync == nullptr) return false;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context.handle());
  CUstream stream = nullptr;
  if (!scope.ok() || context.thread_stream(&stream) != CUDA_SUCCESS ||
      driver_.cuMemFreeAsync(address, stream) != CUDA_SUCCESS) {
    return false;
  }
  cuda::wait_for_stream(driver_, stream);
  return true;
}

}  // namespace cupool::engine
