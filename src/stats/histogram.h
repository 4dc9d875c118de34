// SPDX-License-Identifier: Apache-2.0
// Durations in log-linear buckets: exact count, sum and maximum, percentiles within 12.5 %. Fixed
// memory, no lock and no allocation, since every malloc and free records one.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cupool::stats {

/// A non-empty bucket.
struct HistogramBucket {
  std::uint64_t upper_bound_ns = 0;  ///< the longest duration in it
  std::uint64_t count = 0;
};

/// A histogram at one moment, for reports. Times in nanoseconds.
struct HistogramSummary {
  std::uint64_t count = 0;
  std::uint64_t sum_ns = 0;
  std::uint64_t max_ns = 0;
  std::uint64_t p50_ns = 0;
  std::uint64_t p90_ns = 0;
  std::uint64_t p99_ns = 0;
  std::uint64_t p99_9_ns = 0;
  std::vector<HistogramBucket> buckets;  ///< non-empty ones, by duration
};

/// Buckets: each of 0..15 ns by itself, then 8 of equal width for each power of two.
/// Constant-initialised (static storage needs no constructor call). All members are thread-safe and
/// lock-free; a concurrent reader may see a value in some figures and not yet in others.
class Histogram {
 public:
  static constexpr std::size_t kSubBuckets = 8;
  static constexpr std::size_t kBuckets = 62 * kSubBuckets;

  constexpr Histogram() noexcept = default;
  Histogram(const Histogram&) = delete;
  Histogram& operator=(const Histogram&) = delete;

  /// Records one duration, `times` times if it stands for untimed ones.
  void record(std::uint64_t duration_ns, std::uint64_t times = 1) noexcept {
    buckets_[bucket_of(duration_ns)].fetch_add(times, std::memory_order_relaxed);
    sum_.fetch_add(times * duration_ns, std::memory_order_relaxed);
    std::uint64_t seen = max_.load(std::memory_order_relaxed);
    while (duration_ns > seen &&
           !max_.compare_exchange_weak(seen, duration_ns, std::memory_order_relaxed)) {
    }
  }

  std::uint64_t count() const noexcept;
  std::uint64_t sum() const noexcept { return sum_.load(std::memory_order_relaxed); }
  std::uint64_t max() const noexcept { return max_.load(std::memory_order_relaxed); }

  /// The duration at `quantile` (0..1) of the records: the upper bound of that record's bucket, or
  /// the maximum if that is less. Never below the true value and at most 12.5 % above it. 0 without
  /// records.
  std::uint64_t percentile(double quantile) const noexcept;

  /// All figures from one copy of the buckets. Throws only std::bad_alloc.
  HistogramSummary summary() const;

  /// Resets it; for a forked child, before other threads exist.
  void reset() noexcept;

  /// The bucket of a duration, and the largest duration of a bucket.
  static constexpr std::size_t bucket_of(std::uint64_t duration_ns) noexcept {
    if (duration_ns < kSubBuckets) return static_cast<std::size_t>(duration_ns);
    const int exponent = 63 - __builtin_clzll(duration_ns);
    const std::size_t sub = static_cast<std::size_t>(duration_ns >> (exponent - 3)) & 7u;
    return static_cast<std::size_t>(exponent - 2) * kSubBuckets + sub;
  }
  static constexpr std::uint64_t upper_bound_of(std::size_t bucket) noexcept {
    if (bucket < kSubBuckets) return bucket;
    const int exponent = static_cast<int>(bucket / kSubBuckets) + 2;
    const std::uint64_t width = std::uint64_t{1} << (exponent - 3);
    return (std::uint64_t{1} << exponent) + width * (bucket % kSubBuckets) + (width - 1);
  }

 private:
  std::array<std::atomic<std::uint64_t>, kBuckets> buckets_{};
  std::atomic<std::uint64_t> sum_{0};
  std::atomic<std::uint64_t> max_{0};
};

}  // namespace cupool::stats
