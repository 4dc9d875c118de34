// SPDX-License-Identifier: Apache-2.0
// Memory that the program never frees, by call site (CUPOOL_LEAKS): the stacks of live allocations,
// or of a sample, which is cheap enough to stay on.
#pragma once

#include <cstdint>

#include "stats/snapshot.h"
#include "trace/watch.h"

namespace cupool::trace {

/// Starts to keep the stack of one allocation in `one_in` while it is live. To be called once,
/// before the other functions. Throws only std::bad_alloc.
void start_leaks(std::uint64_t one_in);

/// Thread-safe. Never throw: without memory, an allocation is not listed.
void leak_allocated(const Memory& memory) noexcept;
void leak_freed(std::uint64_t address) noexcept;
/// The end of that free, in the same thread. `refused`: the memory is listed again, with the call
/// site that allocated it.
void leak_free_done(std::uint64_t address, bool refused) noexcept;

/// Live memory by call site, most bytes first; estimated if only a sample is kept. Thread-safe.
/// Throws only std::bad_alloc.
stats::Leaks live_by_call_site();

}  // namespace cupool::trace
