// SPDX-License-Identifier: Apache-2.0
// Histogram of requested sizes by powers of two. Each thread counts in its own tally, which is
// folded into this with its other figures.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cupool::stats {

/// Bucket i holds the sizes above 2^(i-1) and up to 2^i bytes; the last one all larger sizes.
inline constexpr std::size_t kSizeBuckets = 48;

inline constexpr std::size_t size_bucket_of(std::uint64_t bytes) noexcept {
  if (bytes <= 1) return 0;
  const std::size_t power = 64u - static_cast<std::size_t>(__builtin_clzll(bytes - 1));
  return power < kSizeBuckets ? power : kSizeBuckets - 1;
}

/// The largest size of a bucket, in bytes.
inline constexpr std::uint64_t size_bucket_bound(std::size_t bucket) noexcept {
  return std::uint64_t{1} << bucket;
}

struct SizeBucket {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
};
using SizeBuckets = std::array<SizeBucket, kSizeBuckets>;

/// The histogram of one device. Constant-initialised; all members are thread-safe and lock-free.
class SizeHistogram {
 public:
  constexpr SizeHistogram() noexcept = default;
  SizeHistogram(const SizeHistogram&) = delete;
  SizeHistogram& operator=(const SizeHistogram&) = delete;

  void record(std::uint64_t bytes) noexcept { add(size_bucket_of(bytes), 1, bytes); }
  void add(std::size_t bucket, std::uint64_t count, std::uint64_t bytes) noexcept {
    cells_[bucket].count.fetch_add(count, std::memory_order_relaxed);
    cells_[bucket].bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  SizeBuckets read() const noexcept {
    SizeBuckets buckets{};
    for (std::size_t i = 0; i < kSizeBuckets; ++i) {
      buckets[i] = {cells_[i].count.load(std::memory_order_relaxed),
                    cells_[i].bytes.load(std::memory_order_relaxed)};
    }
    return buckets;
  }
  /// Resets it; for a forked child, before other threads exist.
  void reset() noexcept {
    for (Cell& cell : cells_) {
      cell.count.store(0, std::memory_order_relaxed);
      cell.bytes.store(0, std::memory_order_relaxed);
    }
  }

 private:
  struct Cell {
    std::atomic<std::uint64_t> count{0};
    std::atomic<std::uint64_t> bytes{0};
  };
  std::array<Cell, kSizeBuckets> cells_{};
};

/// One thread's counts since the last fold; not thread-safe. A fold touches only used buckets.
class SizeTally {
 public:
  void record(std::uint64_t bytes) noexcept {
    const std::size_t bucket = size_bucket_of(bytes);
    used_ |= std::uint64_t{1} << bucket;
    ++buckets_[bucket].count;
    buckets_[bucket].bytes += bytes;
  }
  /// Adds all to `histogram` and resets the tally.
  void fold(SizeHistogram& histogram) noexcept {
    for (; used_ != 0; used_ &= used_ - 1) {
      const auto bucket = static_cast<std::size_t>(__builtin_ctzll(used_));
      histogram.add(bucket, buckets_[bucket].count, buckets_[bucket].bytes);
      buckets_[bucket] = {};
    }
  }

 private:
  std::uint64_t used_ = 0;
  SizeBuckets buckets_{};
};

}  // namespace cupool::stats
