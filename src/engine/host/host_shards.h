// SPDX-License-Identifier: Apache-2.0
// Which shard of the cache of page-locked memory is a thread's own (engine/host/host_cache). A
// thread that begins gets the shard of one that has ended, with the memory in it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine/host/host_class.h"

namespace cupool::engine {

/// One state for the process. Thread-safe. A wrong answer costs time alone: each shard has a lock.
class HostShards {
 public:
  /// The calling thread's. Several threads share one where there are more threads than shards.
  static std::size_t own() { return own_ != 0 ? own_ - 1 : take(); }
  /// Whether a running thread has taken this one.
  static bool has_owner(std::size_t index) {
    return (taken_.load(std::memory_order_relaxed) >> index & 1u) != 0;
  }

 private:
  static std::size_t take();
  static void give_back(void*);

  static_assert(kHostShards <= 64, "one bit of `taken_` for each");
  static inline thread_local std::size_t own_ = 0;  ///< its number and one; 0: none
  static inline std::atomic<std::uint64_t> taken_{0};
};

}  // namespace cupool::engine
