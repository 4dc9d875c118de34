// SPDX-License-Identifier: Apache-2.0
// The attributes in which pool memory differs from memory of cuMemAlloc.
#include "engine/serve/found_memory.h"

#include "engine/context/context.h"

namespace cupool::engine {

CUcontext FoundMemory::context() const {
  if (as_the_drivers != nullptr) return as_the_drivers->context->handle();
  return live != nullptr ? live->context->handle() : imported->context;
}

std::uint64_t FoundMemory::requested() const {
  if (as_the_drivers != nullptr) return as_the_drivers->requested;
  return live != nullptr ? static_cast<std::uint64_t>(live->requested) : imported->requested;
}

void FoundMemory::answer_as_legacy(CUpointer_attribute attribute, void* value) const {
  if (!served() || (as_the_drivers != nullptr && attribute != CU_POINTER_ATTRIBUTE_RANGE_SIZE))
    return;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(value) = context();
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<std::size_t*>(value) = requested();
      break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *static_cast<CUmemoryPool*>(value) = nullptr;
      break;
    // The driver has written the whole value, of any width; only the low byte differs.
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      if (live != nullptr && can_share(live->context->device(), *live)) {
        *static_cast<unsigned char*>(value) = 1;
      }
      break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *static_cast<unsigned char*>(value) = 0;
      break;
    default:
      break;
  }
}

}  // namespace cupool::engine
