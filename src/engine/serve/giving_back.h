// SPDX-License-Identifier: Apache-2.0
// Counts threads that are giving idle memory back. A call that runs out of memory waits for them
// instead of failing.
#pragma once

#include <atomic>
#include <cstdint>

#include "util/clock.h"

namespace cupool::engine {

/// Longest wait for memory that another thread is giving back, or for the end of another context.
/// Both take a few driver calls, but their thread may be off its processor.
inline constexpr std::uint64_t kLongestWaitForOthersNs = 1'000'000'000;

/// Longest wait for the end of another context where a later call, or decay, can do the same.
inline constexpr std::uint64_t kShortNs = 1'000'000;

/// Threads that are giving memory back. Thread-safe.
class GiveBacks {
 public:
  bool any_under_way() const { return threads_.load(std::memory_order_acquire) != 0; }
  /// Time of the last return of memory; 0: never.
  std::uint64_t last_ns() const { return last_ns_.load(std::memory_order_acquire); }

 private:
  friend class GivingBack;
  std::atomic<int> threads_{0};
  std::atomic<std::uint64_t> last_ns_{0};
};

/// While this object lives, the calling thread is giving idle memory back.
class GivingBack {
 public:
  explicit GivingBack(GiveBacks& all) : all_(all) {
    all_.threads_.fetch_add(1, std::memory_order_acq_rel);
  }
  ~GivingBack() {
    if (gave_back) all_.last_ns_.store(util::now_ns(), std::memory_order_release);
    all_.threads_.fetch_sub(1, std::memory_order_acq_rel);
  }
  GivingBack(const GivingBack&) = delete;
  GivingBack& operator=(const GivingBack&) = delete;

  bool gave_back = false;

 private:
  GiveBacks& all_;
};

}  // namespace cupool::engine
