// SPDX-License-Identifier: Apache-2.0
// Threads, sizes, events and samples: bounded, exact where they promise it, and over the whole run.
#include "stats/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <numeric>
#include <thread>

#include "stats/series.h"
#include "stats/size_histogram.h"
#include "stats/thread_figures.h"

namespace cupool::stats {
namespace {

class Timeline : public testing::Test {
 protected:
  void SetUp() override { reset_after_fork(); }
  void TearDown() override { reset_after_fork(); }
};

TEST(SizeBuckets, HoldWhatTheirBoundsSay) {
  EXPECT_EQ(size_bucket_of(1), 0u);
  EXPECT_EQ(size_bucket_of(2), 1u);
  EXPECT_EQ(size_bucket_of(3), 2u);
  for (std::size_t power = 2; power < kSizeBuckets; ++power) {
    const std::uint64_t bound = size_bucket_bound(power);
    EXPECT_EQ(size_bucket_of(bound), power);
    EXPECT_EQ(size_bucket_of(bound - 1), power);
    EXPECT_EQ(size_bucket_of(bound + 1), std::min(power + 1, kSizeBuckets - 1));
  }
  EXPECT_EQ(size_bucket_of(UINT64_MAX), kSizeBuckets - 1) << "larger than any memory";
}

TEST(SizeTally, FoldsOnceAndBeginsAnew) {
  SizeHistogram histogram;
  SizeTally tally;
  tally.record(1000);
  tally.record(1024);
  tally.record(1025);
  tally.fold(histogram);
  tally.fold(histogram);
  tally.record(1);
  tally.fold(histogram);
  const SizeBuckets buckets = histogram.read();
  EXPECT_EQ(buckets[10].count, 2u);
  EXPECT_EQ(buckets[10].bytes, 2024u);
  EXPECT_EQ(buckets[11].count, 1u);
  EXPECT_EQ(buckets[0].count, 1u);
  std::uint64_t all = 0;
  for (const SizeBucket& bucket : buckets) all += bucket.count;
  EXPECT_EQ(all, 4u);
}

TEST_F(Timeline, EachThreadHasItsNameAndItsSums) {
  std::thread([] {
    pthread_setname_np(pthread_self(), "worker");
    this_thread().add_mallocs(3, 300);
    this_thread().add_frees(2);
    this_thread().add_wait(7);
  }).join();
  ThreadSnapshot others;
  std::uint64_t other_threads = 99;
  const std::vector<ThreadSnapshot> threads = thread_snapshots(&others, &other_threads);
  ASSERT_EQ(threads.size(), 1u);
  EXPECT_EQ(threads[0].name, "worker");
  EXPECT_GT(threads[0].tid, 0);
  EXPECT_EQ(threads[0].malloc_calls_total, 3u);
  EXPECT_EQ(threads[0].malloc_requested_bytes_total, 300u);
  EXPECT_EQ(threads[0].free_calls_total, 2u);
  EXPECT_EQ(threads[0].free_waits_total, 1u);
  EXPECT_EQ(threads[0].free_wait_ns_total, 7u);
  EXPECT_EQ(other_threads, 0u);
}

TEST_F(Timeline, ThreadsBeyondTheListAreSummedUp) {
  for (std::size_t i = 0; i < kListedThreads + 10; ++i) {
    std::thread([] { this_thread().add_mallocs(1, 10); }).join();
  }
  ThreadSnapshot others;
  std::uint64_t other_threads = 0;
  EXPECT_EQ(thread_snapshots(&others, &other_threads).size(), kListedThreads);
  EXPECT_EQ(other_threads, 10u);
  EXPECT_EQ(others.malloc_calls_total, 10u);
  EXPECT_EQ(others.malloc_requested_bytes_total, 100u);
}

TEST_F(Timeline, EventsAreKeptInOrderWithTheirDevice) {
  note_event(EventKind::growth, device(3), 100);
  note_event(EventKind::wait, device(-1), 0, 5'000'000);
  const std::vector<Event> all = events();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].kind, EventKind::growth);
  EXPECT_EQ(all[0].device, 3);
  EXPECT_EQ(all[0].bytes, 100u);
  EXPECT_EQ(all[1].device, -1);
  EXPECT_EQ(all[1].duration_ns, 5'000'000u);
  EXPECT_LE(all[0].time_ns, all[1].time_ns);
}

TEST_F(Timeline, ManyEventsOfADeviceAreJoinedAndNoneIsLost) {
  constexpr std::uint64_t kMany = 100'000;
  note_event(EventKind::trim, device(0), 0);
  for (std::uint64_t i = 0; i < kMany; ++i) note_event(EventKind::growth, device(0), 2);
  const std::vector<Event> all = events();
  EXPECT_LE(all.size(), 257u);
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  for (const Event& event : all) {
    if (event.kind != EventKind::growth) continue;
    count += event.count;
    bytes += event.bytes;
  }
  EXPECT_EQ(count, kMany);
  EXPECT_EQ(bytes, 2 * kMany);
  EXPECT_EQ(all[0].kind, EventKind::trim) << "one kind does not displace another";
}

TEST_F(Timeline, EventsOfDevicesInTurnStayBoundedWithTheNewest) {
  for (int i = 0; i < 10'000; ++i) {
    note_event(EventKind::growth, device(i % 2), static_cast<std::uint64_t>(i));
  }
  const std::vector<Event> all = events();
  EXPECT_LE(all.size(), 256u);
  EXPECT_EQ(all.back().bytes, 9'999u);
}

Sample sample_at(std::uint64_t time_ns) {
  return {time_ns, {}};
}

TEST(SampleRing, KeepsAllWhileThereIsRoom) {
  SampleRing ring(1000);
  for (std::uint64_t i = 0; i < SampleRing::kMostSamples; ++i) ring.add(sample_at(i));
  const Series series = ring.read();
  EXPECT_EQ(series.samples.size(), SampleRing::kMostSamples);
  EXPECT_EQ(series.kept_interval_ns, 1000u);
}

TEST(SampleRing, CoversTheWholeRunEvenlyInBoundedMemory) {
  SampleRing ring(1000);
  constexpr std::uint64_t kOffered = 100'000;
  for (std::uint64_t i = 0; i < kOffered; ++i) ring.add(sample_at(i));
  const Series series = ring.read();
  EXPECT_LE(series.samples.size(), SampleRing::kMostSamples);
  EXPECT_GE(series.samples.size(), SampleRing::kMostSamples / 2);
  EXPECT_EQ(series.interval_ns, 1000u);
  const std::uint64_t stride = series.kept_interval_ns / series.interval_ns;
  for (std::size_t i = 0; i < series.samples.size(); ++i) {
    ASSERT_EQ(series.samples[i].time_ns, i * stride);
  }
  EXPECT_GE(series.samples.back().time_ns + stride, kOffered);
}

TEST_F(Timeline, ASampleHasTheFiguresOfActiveDevices) {
  device(2).add(Counter::malloc_calls_total, 5);
  device(2).gauge_add(Gauge::cached_bytes, 77);
  const Sample sample = sample_figures();
  ASSERT_EQ(sample.devices.size(), 1u);
  EXPECT_EQ(sample.devices[0].ordinal, 2);
  EXPECT_EQ(sample.devices[0].counters[static_cast<std::size_t>(Counter::malloc_calls_total)], 5u);
  EXPECT_EQ(sample.devices[0].gauges[static_cast<std::size_t>(Gauge::cached_bytes)], 77);
  EXPECT_FALSE(sample.devices[0].has_device_memory);
}

}  // namespace
}  // namespace cupool::stats
