// SPDX-License-Identifier: Apache-2.0
// Host memory that any kernel may touch, as far as frees depend on it (contract 2): managed and
// zero-copy memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "cuda/driver.h"
#include "util/lock_order.h"

namespace cupool::engine {

class Context;

/// Host memory that kernels can reach: managed memory, and page-locked memory whose device pointer
/// the program has requested. One per process. Thread-safe; each call but forget(),
/// which runs under the lock, takes constant time.
class HostReachable {
 public:
  enum class Kind { managed, zero_copy };
  struct Memory {
    std::uint64_t bytes;
    const Context* context;  ///< current when the memory was added
  };
  /// Adds the allocation at `start`. If it is known, this is what is known of it from now on: its
  /// address may have come again before anybody saw that it was gone.
  void add(Kind kind, std::uintptr_t start, const Memory& memory) noexcept;
  /// Runs `end`, which ends the allocation at `start`. Its record is removed before, since another
  /// thread may get the address next, and added again if `end` fails. It counts until then: `end`
  /// may wait for the kernels that reach it.
  template <typename Call>
  CUresult end(Kind kind, std::uintptr_t start, const Call& end);
  /// Drops the memory for which `is_gone(start, memory)` is true.
  template <typename IsGone>
  void forget(const IsGone& is_gone);
  /// The program has memory of a pool of managed memory. Its blocks come and go in the order of
  /// streams, and no context takes them along: there is managed memory from now on.
  void pool_is_managed() { managed_pools_.store(true, std::memory_order_relaxed); }
  bool holds(Kind kind, std::uintptr_t start);
  bool any(Kind kind) const {
    return of(kind).count.load(std::memory_order_relaxed) != 0 ||
           (kind == Kind::managed && managed_pools_.load(std::memory_order_relaxed));
  }
  /// Bytes of all known memory of this kind.
  std::uint64_t bytes(Kind kind) const { return of(kind).bytes.load(std::memory_order_relaxed); }

 private:
  struct Ranges {
    std::unordered_map<std::uintptr_t, Memory> at;
    std::atomic<std::size_t> count{0};
    std::atomic<std::uint64_t> bytes{0};
  };
  const Ranges& of(Kind kind) const { return ranges_[static_cast<int>(kind)]; }
  Ranges& of(Kind kind) { return ranges_[static_cast<int>(kind)]; }

  std::optional<Memory> take(Kind kind, std::uintptr_t start);
  bool put_back(Kind kind, std::uintptr_t start, const Memory& memory) noexcept;
  static void uncount(Ranges& ranges, const Memory& memory) {
    ranges.count.fetch_sub(1, std::memory_order_relaxed);
    ranges.bytes.fetch_sub(memory.bytes, std::memory_order_relaxed);
  }

  util::Ranked<util::LockRank::host_reachable> mutex_;
  Ranges ranges_[2];
  std::atomic<bool> managed_pools_{false};
};

template <typename Call>
CUresult HostReachable::end(Kind kind, std::uintptr_t start, const Call& end) {
  const std::optional<Memory> taken = take(kind, start);
  const CUresult result = end();
  const bool stays = taken && result != CUDA_SUCCESS && put_back(kind, start, *taken);
  if (taken && !stays) uncount(of(kind), *taken);
  return result;
}

template <typename IsGone>
void HostReachable::forget(const IsGone& is_gone) {
  const std::lock_guard lock(mutex_);
  for (Ranges& ranges : ranges_) {
    for (auto next = ranges.at.begin(); next != ranges.at.end();) {
      const auto found = next++;
      if (!is_gone(found->first, found->second)) continue;
      uncount(ranges, found->second);
      ranges.at.erase(found);
    }
  }
}

}  // namespace cupool::engine
