// The real cuMemAlloc and cuMemFree, allowed during captures of the program.
#include "core/backend_malloc.h"

#include "core/context.h"
#include "cuda/scopes.h"

namespace cupool::core {

CUresult MallocBackend::allocate(Context&, std::uint64_t capacity, CUdeviceptr* address) {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  return driver_.cuMemAlloc_v2(address, capacity);
}

bool MallocBackend::release(Context& context, CUdeviceptr address) {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context.handle());
  return scope.ok() && driver_.cuMemFree_v2(address) == CUDA_SUCCESS;
}

}  // namespace cupool::core
