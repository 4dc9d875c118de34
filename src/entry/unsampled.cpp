// SPDX-License-Identifier: Apache-2.0
// The hot path once more, with the count that leads to the next sample.
#include "entry/unsampled.h"

#include "engine/serve/hot_path.h"

namespace cupool::entry {

engine::Block* pop_unsampled(engine::Allocator& allocator, std::uint64_t bytes) {
  engine::Context* const context = allocator.registry().known_current();
  engine::Block* const block = context == nullptr ? nullptr : engine::pop_hot(*context, bytes);
  if (block != nullptr) trace::count_unsampled(bytes);
  return block;
}

std::optional<CUresult> free_unsampled(engine::Allocator& allocator, CUdeviceptr address) {
  const std::optional<CUresult> freed = engine::free_hot(allocator, address);
  if (freed) ++trace::sampling_thread.calls;
  return freed;
}

}  // namespace cupool::entry
