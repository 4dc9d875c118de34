// SPDX-License-Identifier: Apache-2.0
// Buckets and percentiles against sorted lists of the same values.
#include "stats/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace cupool::stats {
namespace {

TEST(Buckets, CoverEveryValueOnceAndInOrder) {
  for (std::size_t i = 0; i + 1 < Histogram::kBuckets; ++i) {
    const std::uint64_t last = Histogram::upper_bound_of(i);
    EXPECT_EQ(Histogram::bucket_of(last), i);
    EXPECT_EQ(Histogram::bucket_of(last + 1), i + 1);
  }
  EXPECT_EQ(Histogram::bucket_of(0), 0u);
  EXPECT_EQ(Histogram::bucket_of(UINT64_MAX), Histogram::kBuckets - 1);
  EXPECT_EQ(Histogram::upper_bound_of(Histogram::kBuckets - 1), UINT64_MAX);
}

TEST(Buckets, AreExactBelow16AndWithinAnEighthAbove) {
  for (std::uint64_t value = 0; value < 16; ++value) {
    EXPECT_EQ(Histogram::upper_bound_of(Histogram::bucket_of(value)), value);
  }
  for (std::uint64_t value = 16; value < (std::uint64_t{1} << 62); value += value / 7) {
    const std::uint64_t bound = Histogram::upper_bound_of(Histogram::bucket_of(value));
    EXPECT_GE(bound, value);
    EXPECT_LT(bound - value, value / 8 + 1) << value;
  }
}

TEST(HistogramFigures, AreZeroWhenNothingWasRecorded) {
  const auto histogram = std::make_unique<Histogram>();
  const HistogramSummary summary = histogram->summary();
  EXPECT_EQ(summary.count + summary.sum_ns + summary.max_ns + summary.p50_ns + summary.p99_9_ns,
            0u);
  EXPECT_EQ(histogram->percentile(0.5), 0u);
}

TEST(HistogramFigures, OfOneRecordAreThatRecord) {
  const auto histogram = std::make_unique<Histogram>();
  histogram->record(1'000'003);
  const HistogramSummary summary = histogram->summary();
  EXPECT_EQ(summary.count, 1u);
  EXPECT_EQ(summary.sum_ns, 1'000'003u);
  EXPECT_EQ(summary.max_ns, 1'000'003u);
  EXPECT_EQ(summary.p50_ns, 1'000'003u) << "never above the maximum";
}

TEST(HistogramFigures, PercentilesAreNeverBelowTheTruthAndAtMostAnEighthAbove) {
  const auto histogram = std::make_unique<Histogram>();
  std::mt19937_64 random(20251120);
  std::lognormal_distribution<double> durations(8.0, 2.0);
  std::vector<std::uint64_t> values(100'001);
  std::uint64_t sum = 0;
  for (std::uint64_t& value : values) {
    value = static_cast<std::uint64_t>(durations(random));
    sum += value;
    histogram->record(value);
  }
  std::sort(values.begin(), values.end());
  for (const double quantile : {0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const double rank = std::max(1.0, std::ceil(quantile * static_cast<double>(values.size())));
    const std::uint64_t truth = values[static_cast<std::size_t>(rank) - 1];
    EXPECT_GE(histogram->percentile(quantile), truth) << quantile;
    EXPECT_LE(histogram->percentile(quantile), truth + truth / 8) << quantile;
  }
  const HistogramSummary summary = histogram->summary();
  EXPECT_EQ(summary.count, values.size());
  EXPECT_EQ(summary.sum_ns, sum);
  EXPECT_EQ(summary.max_ns, values.back());
  EXPECT_EQ(summary.p50_ns, histogram->percentile(0.50));
  EXPECT_EQ(summary.p90_ns, histogram->percentile(0.90));
  EXPECT_EQ(summary.p99_ns, histogram->percentile(0.99));
  EXPECT_EQ(summary.p99_9_ns, histogram->percentile(0.999));
}

TEST(HistogramFigures, RankIsTheSmallestShareThatReaches) {
  const auto histogram = std::make_unique<Histogram>();
  for (const std::uint64_t value : {1, 2, 3, 4}) histogram->record(value);
  EXPECT_EQ(histogram->percentile(0.50), 2u);
  EXPECT_EQ(histogram->percentile(0.51), 3u);
  EXPECT_EQ(histogram->percentile(1.0), 4u);
}

TEST(HistogramFigures, AreExactWhenThreadsRecordTogether) {
  const auto histogram = std::make_unique<Histogram>();
  std::vector<std::thread> threads;
  for (std::uint64_t t = 1; t <= 4; ++t) {
    threads.emplace_back([&histogram, t] {
      for (std::uint64_t i = 0; i < 10'000; ++i) histogram->record(t * 1000 + i % 7);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(histogram->count(), 40'000u);
  EXPECT_EQ(histogram->max(), 4006u);
}

TEST(HistogramFigures, ResetEmpties) {
  const auto histogram = std::make_unique<Histogram>();
  histogram->record(5);
  histogram->reset();
  EXPECT_EQ(histogram->count() + histogram->sum() + histogram->max(), 0u);
}

}  // namespace
}  // namespace cupool::stats
