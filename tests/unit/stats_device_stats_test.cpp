// SPDX-License-Identifier: Apache-2.0
// Counters, gauges with their peaks, the peak use, and the snapshot of them.
#include "stats/device_stats.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "stats/peak_use.h"
#include "stats/snapshot.h"

namespace cupool::stats {
namespace {

class DeviceFigures : public testing::Test {
 protected:
  void SetUp() override { reset_after_fork(); }
  void TearDown() override { reset_after_fork(); }
};

const DeviceSnapshot* find(const Snapshot& snapshot, int ordinal) {
  const auto found =
      std::find_if(snapshot.devices.begin(), snapshot.devices.end(),
                   [ordinal](const DeviceSnapshot& each) { return each.ordinal == ordinal; });
  return found == snapshot.devices.end() ? nullptr : &*found;
}

TEST_F(DeviceFigures, EachCounterIsItsOwn) {
  DeviceStats& stats = device(3);
  for (std::size_t i = 0; i < kCounters; ++i) stats.add(static_cast<Counter>(i), i + 1);
  for (std::size_t i = 0; i < kCounters; ++i) {
    EXPECT_EQ(stats.value(static_cast<Counter>(i)), i + 1);
  }
  EXPECT_EQ(device(4).value(Counter::malloc_calls_total), 0u);
}

TEST_F(DeviceFigures, APeakIsTheHighestValueThatWasReached) {
  DeviceStats& stats = device(0);
  stats.gauge_add(Gauge::application_bytes, 100);
  stats.gauge_add(Gauge::application_bytes, -60);
  stats.gauge_add(Gauge::application_bytes, 50);
  EXPECT_EQ(stats.value(Gauge::application_bytes).current, 90);
  EXPECT_EQ(stats.value(Gauge::application_bytes).peak, 100);
  EXPECT_EQ(stats.value(Gauge::cached_bytes).peak, 0);
}

TEST_F(DeviceFigures, AComputedGaugeIsReplacedNotAdded) {
  device(0).gauge_set(Gauge::leaked_blocks, 5);
  device(0).gauge_set(Gauge::leaked_blocks, 3);
  EXPECT_EQ(device(0).value(Gauge::leaked_blocks).current, 3);
}

TEST_F(DeviceFigures, ThreadsLoseNothing) {
  DeviceStats& stats = device(0);
  constexpr int thread_count = 4;
  constexpr int rounds = 20'000;
  std::vector<std::thread> threads;
  for (int t = 0; t < thread_count; ++t) {
    threads.emplace_back([&stats] {
      for (int i = 0; i < rounds; ++i) {
        stats.add(Counter::malloc_calls_total);
        stats.gauge_add(Gauge::device_bytes, 10);
        stats.gauge_add(Gauge::device_bytes, -10);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(stats.value(Counter::malloc_calls_total), std::uint64_t{thread_count} * rounds);
  EXPECT_EQ(stats.value(Gauge::device_bytes).current, 0);
  EXPECT_GE(stats.value(Gauge::device_bytes).peak, 10);
  EXPECT_LE(stats.value(Gauge::device_bytes).peak, 10 * thread_count);
}

TEST_F(DeviceFigures, UnknownOrdinalsShareTheSpare) {
  EXPECT_EQ(&device(-1), &device(kMaxDevices));
  EXPECT_EQ(&device(-1), &device(1'000'000));
  EXPECT_NE(&device(-1), &device(kMaxDevices - 1));
  device(-1).add(Counter::malloc_failed_total);
  const Snapshot snapshot = take();
  ASSERT_EQ(snapshot.devices.size(), 1u);
  EXPECT_EQ(snapshot.devices[0].ordinal, -1);
}

TEST_F(DeviceFigures, ASnapshotHasTheActiveDevicesInOrder) {
  device(7).add(Counter::free_null_total);
  device(2).call_times().malloc.record(5);
  device(5).set_device_info("idle, only named", 1);
  const Snapshot snapshot = take();
  ASSERT_EQ(snapshot.devices.size(), 2u);
  EXPECT_EQ(snapshot.devices[0].ordinal, 2);
  EXPECT_EQ(snapshot.devices[1].ordinal, 7);
  EXPECT_EQ(snapshot.devices[0].malloc_time.count, 1u);
}

TEST_F(DeviceFigures, TheSnapshotCopiesEveryFigure) {
  DeviceStats& stats = device(1);
  for (std::size_t i = 0; i < kCounters; ++i) stats.add(static_cast<Counter>(i), 100 + i);
  for (std::size_t i = 0; i < kGauges; ++i) {
    stats.gauge_add(static_cast<Gauge>(i), 1000);
    stats.gauge_add(static_cast<Gauge>(i), -static_cast<std::int64_t>(i));
  }
  stats.set_pool_figures({true, 5000, 6000, 3000, 4000});
  stats.set_device_info("Test GPU", 1 << 30);
  stats.set_device_info("the first name counts", 1);
  const Snapshot snapshot = take();
  const DeviceSnapshot* copy = find(snapshot, 1);
  ASSERT_NE(copy, nullptr);
  for (std::size_t i = 0; i < kCounters; ++i) EXPECT_EQ(copy->counters[i], 100 + i);
  for (std::size_t i = 0; i < kGauges; ++i) {
    EXPECT_EQ(copy->gauges[i].current, 1000 - static_cast<std::int64_t>(i));
    EXPECT_EQ(copy->gauges[i].peak, 1000);
  }
  EXPECT_TRUE(copy->pool.valid);
  EXPECT_EQ(copy->pool.reserved_high, 6000u);
  EXPECT_EQ(copy->pool.used_high, 4000u);
  EXPECT_EQ(copy->name, "Test GPU");
  EXPECT_EQ(copy->total_memory_bytes, 1u << 30);
  // What is in no pool takes nothing of what the pool reserves.
  EXPECT_EQ(copy->driver_slack_bytes(),
            5000 - (*copy)[Gauge::held_bytes].current + (*copy)[Gauge::plain_bytes].current);
}

TEST_F(DeviceFigures, ALongDeviceNameIsCut) {
  device(1).set_device_info(std::string(1000, 'x').c_str(), 1);
  EXPECT_EQ(device(1).device_name(), std::string(127, 'x'));
}

TEST_F(DeviceFigures, WithoutAPoolThereIsNoSlack) {
  device(0).gauge_add(Gauge::held_bytes, 100);
  EXPECT_EQ(find(take(), 0)->driver_slack_bytes(), 0);
}

// Contract 11: one report per process that allocated GPU memory or was served page-locked memory,
// none from any other. Libraries pin memory in processes that never touch a GPU's.
TEST_F(DeviceFigures, OnlyAllocationsMakeAProcessReport) {
  EXPECT_FALSE(take().is_worth_a_report());
  device(0).add(Counter::synchronize_calls_total);
  device(0).add(Counter::free_null_total);
  device(0).add(Counter::host_malloc_calls_total);
  EXPECT_FALSE(take().is_worth_a_report());
  for (const Counter counter : {Counter::malloc_calls_total, Counter::managed_malloc_calls_total,
                                Counter::array_calls_total, Counter::own_async_malloc_calls_total,
                                Counter::host_served_total}) {
    reset_after_fork();
    device(0).add(counter);
    EXPECT_TRUE(take().is_worth_a_report());
  }
}

TEST_F(DeviceFigures, AForkedChildStartsFromNothing) {
  device(0).add(Counter::malloc_calls_total, 9);
  device(0).call_times().malloc.record(9);
  device(0).set_device_info("parent's", 1);
  const pid_t child = ::fork();
  if (child == 0) {
    reset_after_fork();
    bool right = take().devices.empty();
    device(0).set_device_info("child's", 2);
    device(0).add(Counter::malloc_calls_total);
    const Snapshot snapshot = take();
    right = right && snapshot.pid == ::getpid() && snapshot.devices.size() == 1 &&
            snapshot.devices[0].name == "child's" &&
            snapshot.devices[0][Counter::malloc_calls_total] == 1;
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(device(0).value(Counter::malloc_calls_total), 9u) << "the parent's stay";
}

TEST(ProcessFigures, AreFoundOutAndCanBeReplaced) {
  const ProcessInfo found = this_process();
  EXPECT_NE(found.program_path.find("cupool_unit_tests"), std::string::npos);
  EXPECT_FALSE(found.host.empty());
  EXPECT_FALSE(found.library_version.empty());
  EXPECT_GT(found.start_wall_ns, 1'600'000'000'000'000'000u);

  ProcessInfo info = found;
  info.backend = "pool";
  info.settings.push_back({"CUPOOL_X", "1", "environment", false});
  set_process_info(info);
  info.backend = "malloc";
  set_process_info(info);
  const Snapshot snapshot = take();
  EXPECT_EQ(snapshot.schema_version, 1);
  EXPECT_EQ(snapshot.pid, ::getpid());
  EXPECT_EQ(snapshot.process.backend, "malloc");
  ASSERT_EQ(snapshot.process.settings.size(), 1u);
  EXPECT_EQ(snapshot.process.settings[0].name, "CUPOOL_X");
  EXPECT_GE(snapshot.end_wall_ns, snapshot.process.start_wall_ns);
}

// Style 8: units in key names.
TEST(CounterNames, CarryTheirUnits) {
  const auto ends = [](const std::string& key, const std::string& end) {
    return key.size() > end.size() && key.compare(key.size() - end.size(), end.size(), end) == 0;
  };
#define CUPOOL_COUNTER(key, unit, label, help)                                  \
  EXPECT_TRUE(ends(#key, "_total")) << #key;                                    \
  EXPECT_EQ(std::string(#unit) == "bytes", ends(#key, "_bytes_total")) << #key; \
  EXPECT_EQ(std::string(#unit) == "ns", ends(#key, "_ns_total")) << #key;       \
  EXPECT_STRNE(help, "") << #key;
#define CUPOOL_GAUGE(key, unit, label, help) EXPECT_TRUE(ends(#key, "_" #unit)) << #key;
#include "stats/counters.def"
}

// The record of the peak use (docs/design.md, Peak use).

PeakUse use_of(std::int64_t bytes) {
  PeakUse use;
  use.time_ns = bytes;
  use.application_bytes = bytes;
  use.rounding_bytes = 2 * bytes;
  use.retired_bytes = 3 * bytes;
  use.cached_bytes = 4 * bytes;
  use.driver_slack_bytes = 5 * bytes;
  use.plain_bytes = 6 * bytes;
  return use;
}

TEST(PeakUse, IsTheSumOfItsParts) {
  const PeakUse use = use_of(100);
  EXPECT_EQ(use.held_bytes(), 1000);
  EXPECT_EQ(use.taken_bytes(), 1500);
  EXPECT_EQ(use.reserved_bytes(), 900);
  EXPECT_TRUE(use.adds_up());
  PeakUse torn = use;
  torn.cached_bytes = -1;
  EXPECT_FALSE(torn.adds_up());
}

TEST(PeakUse, IsReachedByMoreTakenOrByAsMuchWithNoLessInBlocks) {
  const PeakUse use = use_of(100);
  EXPECT_TRUE(use.is_reached_by(1501, 0));
  EXPECT_TRUE(use.is_reached_by(1500, 1000));
  EXPECT_FALSE(use.is_reached_by(1500, 999));
  EXPECT_FALSE(use.is_reached_by(1499, 1499));
  EXPECT_TRUE(PeakUse{}.is_reached_by(0, 0));
}

TEST(PeakUseRecord, IsForgottenInAForkedChild) {
  peak_use_of(3).write(use_of(7));
  EXPECT_EQ(peak_use_of(3).read().taken_bytes(), 105);
  EXPECT_FALSE(peak_use_of(4).read().valid());
  reset_after_fork();
  EXPECT_FALSE(peak_use_of(3).read().valid());
}

TEST(PeakUseRecord, IsReadAsAWhole) {
  PeakUseRecord record;
  std::atomic<bool> ended{false};
  std::thread writer([&] {
    for (std::int64_t i = 1; i <= 200'000; ++i) record.write(use_of(i));
    ended = true;
  });
  while (!ended) {
    const PeakUse use = record.read();
    ASSERT_EQ(use.taken_bytes(), 15 * use.time_ns);
    ASSERT_EQ(use.plain_bytes, 6 * use.time_ns);
  }
  writer.join();
  EXPECT_EQ(record.read().time_ns, 200'000);
}

}  // namespace
}  // namespace cupool::stats
