// SPDX-License-Identifier: Apache-2.0
// The hot path once more, with the count that leads to the next sample.
#include "entry/unsampled.h"

#include "engine/serve/hot_path.h"

namespace cupool::entry {

CUdeviceptr allocate_unsampled(engine::Allocator& allocator, std::uint64_t bytes) {
  engine::Context* const context = allocator.registry().known_current();
  const CUdeviceptr address = context == nullptr ? 0 : engine::allocate_hot(*context, bytes);
  if (address != 0) trace::count_unsampled(bytes);
  return address;
}

std::optional<CUresult> free_unsampled(engine::Allocator& allocator, CUdeviceptr address) {
  const std::optional<CUresult> freed = engine::free_hot(allocator, address);
  if (freed) ++trace::sampling_thread.calls;
  return freed;
}

}  // namespace cupool::entry
