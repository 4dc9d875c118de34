// SPDX-License-Identifier: Apache-2.0
// Host memory that the GPU can reach, as far as frees depend on it (contract 2): managed and
// zero-copy memory, which any kernel may touch, and whether the process has page-locked memory.
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
/// the program has requested. One per process. Thread-safe; each call takes constant time.
class HostReachable {
 public:
  enum class Kind { managed, zero_copy };
  struct Memory {
    std::uint64_t bytes;
    const Context* context;  ///< current when the memory was added
  };
  /// Adds the allocation at `start`. Adding it again has no effect.
  void add(Kind kind, std::uintptr_t start, const Memory& memory) noexcept;
  /// Removes the allocation at `start`. Called before the memory is freed, since another thread may
  /// get the address next. The caller adds the result again if the free fails.
  std::optional<Memory> take(Kind kind, std::uintptr_t start);
  /// Drops the memory of a context for which `is_gone(start)` is true.
  template <typename IsGone>
  void forget(const Context& context, const IsGone& is_gone);
  void clear();
  bool holds(Kind kind, std::uintptr_t start);
  bool any(Kind kind) const { return of(kind).count.load(std::memory_order_relaxed) != 0; }
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

  static void uncount(Ranges& ranges, const Memory& memory) {
    ranges.count.fetch_sub(1, std::memory_order_relaxed);
    ranges.bytes.fetch_sub(memory.bytes, std::memory_order_relaxed);
  }

  util::Ranked<util::LockRank::host_reachable> mutex_;
  Ranges ranges_[2];
};

template <typename IsGone>
void HostReachable::forget(const Context& context, const IsGone& is_gone) {
  const std::lock_guard lock(mutex_);
  for (Ranges& ranges : ranges_) {
    for (auto next = ranges.at.begin(); next != ranges.at.end();) {
      const auto found = next++;
      if (found->second.context != &context || !is_gone(found->first)) continue;
      uncount(ranges, found->second);
      ranges.at.erase(found);
    }
  }
}

/// Whether the process has had page-locked memory of its own: a pointer passed as device memory may
/// then be host memory. Thread-safe; may be called before the rest of cupool has started.
class HostTargets {
 public:
  /// Called before the program uses page-locked memory of its own.
  static void made() {
    if (!any()) any_.store(true, std::memory_order_relaxed);
  }
  static bool any() { return any_.load(std::memory_order_relaxed); }

  /// The program has allocated `address` from a pool of its own, which may consist of host memory.
  /// Asks the driver at the first of consecutive blocks of a pool.
  static void note_pool_block(const cuda::Driver& driver, CUmemoryPool pool, CUdeviceptr address);

  /// Whether `address` is host memory for all that is known: 0.07 us once there is any. A pointer
  /// unknown to the driver is not device memory.
  static bool include(const cuda::Driver& driver, CUdeviceptr address);

 private:
  static bool is_device_memory(const cuda::Driver& driver, CUdeviceptr address);

  static std::atomic<bool> any_;
  static std::atomic<CUmemoryPool> last_pool_;  ///< that the driver was asked about
};

}  // namespace cupool::engine
