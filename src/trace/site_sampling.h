// SPDX-License-Identifier: Apache-2.0
// Which allocations CUPOOL_SITES samples. A Poisson process runs along the bytes that a thread
// requests, with one point in `interval` bytes on average; an allocation in which a point falls is
// sampled. So it is with probability 1 - exp(-bytes / interval), and stands for the inverse of that
// many calls: sums of these weights, and of weight * bytes, are unbiased for any mix of sizes. They
// stay so where the interval changes, as long as nothing but the past decides on the change.
#pragma once

#include <cstdint>

namespace cupool::trace {

/// A thread's way to its next sample.
struct SamplingThread {
  std::uint64_t until_sample;  ///< bytes; an allocation of as many is sampled. 0: not drawn yet
  std::uint64_t calls;         ///< allocations and frees so far
  std::uint64_t random;        ///< state of the generator; 0: not seeded
};
inline thread_local SamplingThread sampling_thread{};

/// Whether the thread's next allocation, of `bytes`, is not sampled. No side effect.
inline bool passes_unsampled(std::uint64_t bytes) noexcept {
  return sampling_thread.until_sample > bytes;
}
/// After such an allocation.
inline void count_unsampled(std::uint64_t bytes) noexcept {
  sampling_thread.until_sample -= bytes;
  ++sampling_thread.calls;
}

/// Keeps what samples cost a thread to a hundredth of its time: widens its interval where they cost
/// more, and narrows it again, but never below the first. Not thread-safe.
class SamplingPace {
 public:
  static constexpr std::uint64_t kShare = 100;
  static constexpr std::uint64_t kWidest = std::uint64_t{1} << 40;
  static constexpr unsigned kSamples = 16;  ///< judged together: single distances vary widely

  constexpr explicit SamplingPace(std::uint64_t first) : first_(first), interval_(first) {}

  std::uint64_t interval() const noexcept { return interval_; }
  /// After a sample that took the thread `spent_ns`, `since_ns` after the end of the last.
  void sampled(std::uint64_t since_ns, std::uint64_t spent_ns) noexcept;

 private:
  std::uint64_t first_;
  std::uint64_t interval_;
  std::uint64_t since_ns_ = 0;
  std::uint64_t spent_ns_ = 0;
  unsigned samples_ = 0;
};

/// 64 random bits (SplitMix64); moves `random` on.
std::uint64_t next_random(std::uint64_t* random) noexcept;

/// Bytes up to and including the one in which the next point falls; at least 1.
std::uint64_t draw_distance(std::uint64_t* random, std::uint64_t interval) noexcept;

/// The probability that an allocation is sampled. Greater than 0 for bytes > 0.
double probability_of_sample(std::uint64_t bytes, std::uint64_t interval) noexcept;

}  // namespace cupool::trace
