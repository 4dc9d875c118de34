// What the program never frees, by call site (CUPOOL_LEAKS): the stack of each allocation that is
// still live, or of one in so many, so that it can stay on.
#pragma once

#include <cstdint>

#include "stats/snapshot.h"
#include "trace/watch.h"

namespace cupool::trace {

/// From now on the stack of one allocation in `one_in` is kept while it is live. To be called once,
/// before the first of the other calls. Throws only std::bad_alloc.
void start_leaks(std::uint64_t one_in);

/// Thread-safe. Never throw: without memory an allocation is not listed.
void leak_allocated(const Memory& memory) noexcept;
void leak_freed(std::uint64_t address) noexcept;

/// What is live now, by call site, most bytes first; estimated from the sample if there is one.
/// Thread-safe. Throws only std::bad_alloc.
stats::Leaks live_by_call_site();

}  // namespace cupool::trace
