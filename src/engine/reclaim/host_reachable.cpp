// SPDX-License-Identifier: Apache-2.0
// Managed and zero-copy allocations, by start address.
#include "engine/reclaim/host_reachable.h"

#include <new>

namespace cupool::engine {

void HostReachable::add(Kind kind, std::uintptr_t start, const Memory& memory) noexcept {
  Ranges& ranges = of(kind);
  const std::lock_guard lock(mutex_);
  try {
    if (!ranges.at.emplace(start, memory).second) return;
  } catch (const std::bad_alloc&) {
    // Counted for good: needless waits are better than a missing one.
  }
  ranges.count.fetch_add(1, std::memory_order_relaxed);
  ranges.bytes.fetch_add(memory.bytes, std::memory_order_relaxed);
}

std::optional<HostReachable::Memory> HostReachable::take(Kind kind, std::uintptr_t start) {
  if (!any(kind)) return std::nullopt;
  Ranges& ranges = of(kind);
  const std::lock_guard lock(mutex_);
  const auto found = ranges.at.find(start);
  if (found == ranges.at.end()) return std::nullopt;
  const Memory memory = found->second;
  uncount(ranges, memory);
  ranges.at.erase(found);
  return memory;
}

bool HostReachable::holds(Kind kind, std::uintptr_t start) {
  if (!any(kind)) return false;
  const std::lock_guard lock(mutex_);
  return of(kind).at.count(start) != 0;
}

void HostReachable::clear() {
  const std::lock_guard lock(mutex_);
  for (Ranges& ranges : ranges_) {
    ranges.at.clear();
    ranges.count.store(0, std::memory_order_relaxed);
    ranges.bytes.store(0, std::memory_order_relaxed);
  }
}

}  // namespace cupool::engine
