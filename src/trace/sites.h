// SPDX-License-Identifier: Apache-2.0
// Where memory comes from (CUPOOL_SITES): a sample of all allocations by call site, each followed
// until its free. What is not sampled costs a few instructions, on the hot path (site_sampling.h).
#pragma once

#include <atomic>
#include <cstdint>

#include "stats/sites.h"
#include "trace/site_table.h"
#include "trace/watch.h"

namespace cupool::trace {

namespace detail {
extern std::atomic<const SiteTable*> sites_read;
}

/// Starts to sample one allocation in `interval` bytes; if `paced`, in more where samples would
/// cost a thread more than a hundredth of its time. To be called once, before the other functions.
/// False without memory.
bool start_sites(std::uint64_t interval, bool paced) noexcept;

/// Whether the block at `address` may be a sampled one. For frees on the hot path.
inline bool may_be_sampled(std::uint64_t address) noexcept {
  const SiteTable* const table = detail::sites_read.load(std::memory_order_relaxed);
  return table == nullptr || table->may_hold(address);
}

/// To be called by the thread that allocates or frees. Thread-safe; bounded waits, no heap, no
/// call of the driver. Never throw.
void site_allocated(const Memory& memory) noexcept;
void site_freed(std::uint64_t address) noexcept;
/// The end of that free: `refused`, or done.
void site_free_done(std::uint64_t address, bool refused) noexcept;

/// interval_bytes is 0 without CUPOOL_SITES, and where an interrupted thread holds the table.
/// Thread-safe. Throws only std::bad_alloc.
stats::Sites memory_by_site();

}  // namespace cupool::trace
