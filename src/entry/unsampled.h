// SPDX-License-Identifier: Apache-2.0
// Under CUPOOL_SITES alone: the hot path of calls that are not sampled. Out of the hooks, which
// look only whether anything watches, and in a file of its own: a second use of the hot path in
// theirs would have the compiler inline less of it.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/serve/allocator.h"
#include "trace/site_sampling.h"
#include "trace/sites.h"
#include "trace/watch.h"

namespace cupool::entry {

/// Whether the calling thread's allocation of `bytes`, or its free, may have the hot path.
inline bool allocates_unsampled(std::uint64_t bytes) {
  return trace::only_samples() && trace::passes_unsampled(bytes);
}
inline bool frees_unsampled(CUdeviceptr address) {
  return trace::only_samples() && !trace::may_be_sampled(address);
}

/// Such an allocation in the current context. 0: no side effect, and watchers are to be notified of
/// the allocation.
CUdeviceptr allocate_unsampled(engine::Allocator& allocator, std::uint64_t bytes);

/// Such a free. `std::nullopt`: no side effect.
std::optional<CUresult> free_unsampled(engine::Allocator& allocator, CUdeviceptr address);

}  // namespace cupool::entry
