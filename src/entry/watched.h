// SPDX-License-Identifier: Apache-2.0
// Allocations and frees with their watchers (trace/watch.h).
#pragma once

#include "engine/serve/allocator.h"
#include "trace/watch.h"
#include "util/clock.h"

namespace cupool::entry {

/// Makes an allocation of the program; `bytes` is recorded for a failure.
template <typename Call>
CUresult watched_allocation(engine::Allocator& allocator, std::uint64_t bytes,
                            const CUdeviceptr* address, const Call& call) {
  if (!trace::watching()) return call();
  const trace::CallRange range(trace::CallRange::Call::malloc, bytes);
  const std::uint64_t start = util::now_ns();
  const CUresult result = call();
  if (result != CUDA_SUCCESS) {
    trace::note_allocation_failure(bytes, start);
  } else if (const auto memory = allocator.queries().memory_at(*address)) {
    trace::note_allocation(*memory, start);
  }
  return result;
}

/// Makes a free of the program. A refused one is undone for watchers.
template <typename Call>
auto watched_free(engine::Allocator& allocator, CUdeviceptr address, const Call& call) {
  if (!trace::watching()) return call();
  const auto memory = allocator.queries().memory_at(address);
  const trace::CallRange range(trace::CallRange::Call::free, memory ? memory->bytes : 0);
  const std::uint64_t start = util::now_ns();
  if (memory) trace::note_free(*memory);
  const auto result = call();
  if (memory) {
    const bool refused =
        allocator.queries().memory_at(address) && result != decltype(result){CUDA_SUCCESS};
    trace::note_free_done(*memory, start, refused);
  }
  return result;
}

}  // namespace cupool::entry
