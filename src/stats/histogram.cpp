// SPDX-License-Identifier: Apache-2.0
// Percentiles of a histogram, from a copy of its buckets.
#include "stats/histogram.h"

#include <algorithm>
#include <cmath>

namespace cupool::stats {

namespace {

using Buckets = std::array<std::uint64_t, Histogram::kBuckets>;

// The rank of a quantile among `count` records: the smallest number of records with this share, at
// least one.
std::uint64_t rank_of(double quantile, std::uint64_t count) noexcept {
  const double share = std::min(1.0, std::max(0.0, quantile));
  const auto rank = static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(count)));
  return std::min(std::max<std::uint64_t>(rank, 1), count);
}

std::uint64_t percentile_of(const Buckets& buckets, std::uint64_t count, std::uint64_t max_ns,
                            double quantile) noexcept {
  if (count == 0) return 0;
  const std::uint64_t rank = rank_of(quantile, count);
  std::uint64_t passed = 0;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    passed += buckets[i];
    if (passed >= rank) return std::min(Histogram::upper_bound_of(i), max_ns);
  }
  return max_ns;
}

}  // namespace

HistogramSummary Histogram::summary() const {
  Buckets buckets{};
  HistogramSummary summary;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    buckets[i] = buckets_[i].load(std::memory_order_relaxed);
    summary.count += buckets[i];
    if (buckets[i] != 0) summary.buckets.push_back({upper_bound_of(i), buckets[i]});
  }
  summary.sum_ns = sum();
  summary.max_ns = max();
  summary.p50_ns = percentile_of(buckets, summary.count, summary.max_ns, 0.50);
  summary.p90_ns = percentile_of(buckets, summary.count, summary.max_ns, 0.90);
  summary.p99_ns = percentile_of(buckets, summary.count, summary.max_ns, 0.99);
  summary.p99_9_ns = percentile_of(buckets, summary.count, summary.max_ns, 0.999);
  return summary;
}

std::uint64_t Histogram::count() const noexcept {
  std::uint64_t total = 0;
  for (const auto& bucket : buckets_) total += bucket.load(std::memory_order_relaxed);
  return total;
}

std::uint64_t Histogram::percentile(double quantile) const noexcept {
  Buckets buckets{};
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    buckets[i] = buckets_[i].load(std::memory_order_relaxed);
    total += buckets[i];
  }
  return percentile_of(buckets, total, max(), quantile);
}

void Histogram::reset() noexcept {
  for (auto& bucket : buckets_) bucket.store(0, std::memory_order_relaxed);
  sum_.store(0, std::memory_order_relaxed);
  max_.store(0, std::memory_order_relaxed);
}

}  // namespace cupool::stats
