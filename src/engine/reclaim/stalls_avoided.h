// SPDX-License-Identifier: Apache-2.0
// The frees of a context that may have avoided a stall (stats/stall.h), by number. Fences tell
// which of them did (engine/reclaim/closed_epochs); in a lane, engine/reclaim/lane_stalls does.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace cupool::engine {

/// One per context.
class StallsAvoided {
 public:
  /// A free has not waited for the GPU, and its thread had submitted work since its last free.
  /// Thread-safe, as is the next one.
  void count() { frees_.fetch_add(1, std::memory_order_relaxed); }
  /// Such a free has waited after all, since too much was pending.
  void discount() { waited_.fetch_add(1, std::memory_order_relaxed); }

  /// So far; they are numbered from 1.
  std::uint64_t frees() const { return frees_.load(std::memory_order_relaxed); }

  // Under the ordering's lock:

  bool has_new() const { return taken_ != frees(); }
  /// How many frees after number `after`, up to `last`, are not taken yet: they have avoided a
  /// stall. Takes them.
  std::uint64_t take(std::uint64_t after, std::uint64_t last) {
    after = std::max(after, taken_);
    if (last <= after) return 0;
    taken_ = last;
    const std::uint64_t waited = std::min(last - after, waited_.load(std::memory_order_relaxed));
    waited_.fetch_sub(waited, std::memory_order_relaxed);
    return last - after - waited;
  }

 private:
  std::atomic<std::uint64_t> frees_{0};
  std::atomic<std::uint64_t> waited_{0};  ///< of these
  std::uint64_t taken_ = 0;               ///< no free up to this one is counted any more
};

}  // namespace cupool::engine
