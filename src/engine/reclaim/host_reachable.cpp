// SPDX-License-Identifier: Apache-2.0
// Managed and zero-copy allocations, by start address.
#include "engine/reclaim/host_reachable.h"

#include <new>

namespace cupool::engine {

// Counts first, so that a free meanwhile waits.
void HostReachable::add(Kind kind, std::uintptr_t start, const Memory& memory) noexcept {
  Ranges& ranges = of(kind);
  ranges.count.fetch_add(1, std::memory_order_relaxed);
  ranges.bytes.fetch_add(memory.bytes, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  try {
    const auto [place, is_new] = ranges.at.emplace(start, memory);
    if (is_new) return;
    uncount(ranges, place->second);
    place->second = memory;
  } catch (const std::bad_alloc&) {
    // Counted for good: needless waits are better than a missing one.
  }
}

// What was taken is counted. False: another thread has the address by now.
bool HostReachable::put_back(Kind kind, std::uintptr_t start, const Memory& memory) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    return of(kind).at.emplace(start, memory).second;
  } catch (const std::bad_alloc&) {
    return true;  // counted for good
  }
}

// What is taken is still counted.
std::optional<HostReachable::Memory> HostReachable::take(Kind kind, std::uintptr_t start) {
  if (!any(kind)) return std::nullopt;
  Ranges& ranges = of(kind);
  const std::lock_guard lock(mutex_);
  const auto found = ranges.at.find(start);
  if (found == ranges.at.end()) return std::nullopt;
  const Memory memory = found->second;
  ranges.at.erase(found);
  return memory;
}

bool HostReachable::holds(Kind kind, std::uintptr_t start) {
  if (!any(kind)) return false;
  const std::lock_guard lock(mutex_);
  return of(kind).at.count(start) != 0;
}

}  // namespace cupool::engine
