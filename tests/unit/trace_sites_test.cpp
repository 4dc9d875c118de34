// SPDX-License-Identifier: Apache-2.0
// The sampler's estimator, and the bounded table of call sites (docs/statistics.md, Call
// sites).
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "trace/python_stack.h"
#include "trace/site_sampling.h"
#include "trace/site_table.h"

namespace cupool::trace {
namespace {

constexpr std::uint64_t kInterval = 512 << 10;

TEST(SiteSampling, ProbabilityIsThatOfAPointAmongTheBytes) {
  for (const std::uint64_t bytes : {1ull, 256ull, 65536ull, 524288ull, 5ull << 20, 1ull << 40}) {
    const double expected = -std::expm1(-static_cast<double>(bytes) / kInterval);
    EXPECT_NEAR(probability_of_sample(bytes, kInterval) / expected, 1, 1e-12) << bytes;
  }
}

TEST(SiteSampling, DistancesAreExponential) {
  std::uint64_t random = 20261125;
  constexpr int kDraws = 400000;
  double sum = 0;
  std::array<int, 3> beyond{};  // one, two and three intervals
  for (int i = 0; i < kDraws; ++i) {
    const auto distance = static_cast<double>(draw_distance(&random, kInterval));
    ASSERT_GE(distance, 1);
    sum += distance;
    for (std::size_t n = 0; n < beyond.size(); ++n) {
      beyond[n] += distance > static_cast<double>((n + 1) * kInterval);
    }
  }
  EXPECT_NEAR(sum / kDraws / kInterval, 1, 0.01);  // six standard deviations
  for (std::size_t n = 0; n < beyond.size(); ++n) {
    EXPECT_NEAR(static_cast<double>(beyond[n]) / kDraws, std::exp(-1.0 - static_cast<double>(n)),
                0.005);
  }
}

// Of sizes from far below the interval to far above, each alone and all together: the sums of
// weights meet calls and bytes. A sampler of every n-th call, or by bytes without weights, does
// not.
TEST(SiteSampling, SumsOfWeightsMeetCallsAndBytesOfEverySize) {
  constexpr std::array<std::uint64_t, 5> kSizes = {256, 8192, 100'000, 524288, 20'000'000};
  constexpr int kRounds = 400'000;
  std::uint64_t random = 7;
  std::uint64_t until = draw_distance(&random, kInterval);
  std::array<double, kSizes.size()> calls{};
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      if (until > kSizes[i]) {
        until -= kSizes[i];
        continue;
      }
      until = draw_distance(&random, kInterval);
      calls[i] += 1 / probability_of_sample(kSizes[i], kInterval);
    }
  }
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    const double p = probability_of_sample(kSizes[i], kInterval);
    const double deviation = std::sqrt((1 - p) / p / kRounds);
    EXPECT_NEAR(calls[i] / kRounds, 1, 5 * deviation + 1e-9) << kSizes[i];
  }
}

// A thread that allocates `bytes` each microsecond, and needs 10 for a sample.
struct PacedThread {
  explicit PacedThread(std::uint64_t of_call) : bytes(of_call) {}
  // The weight of the next allocation, or 0 if it is not sampled.
  double allocate() {
    now_ns += 1000;
    if (until > bytes) return until -= bytes, 0;
    const std::uint64_t interval = pace.interval();
    pace.sampled(now_ns - last_ns, 10'000);
    last_ns = now_ns += 10'000;
    spent_ns += 10'000;
    until = draw_distance(&random, pace.interval());
    return 1 / probability_of_sample(bytes, interval);
  }
  std::uint64_t bytes;
  SamplingPace pace{kInterval};
  std::uint64_t random = 99;
  std::uint64_t until = draw_distance(&random, kInterval);
  std::uint64_t now_ns = 0;
  std::uint64_t last_ns = 0;
  std::uint64_t spent_ns = 0;
};

// From a request of a tenth of the interval to one of two thousand times as much.
TEST(SamplingPace, KeepsSamplesToAHundredthOfTheTime) {
  for (const std::uint64_t bytes : {kInterval / 10, kInterval, kInterval * 2000}) {
    PacedThread thread(bytes);
    for (int i = 0; i < 100'000; ++i) thread.allocate();
    thread.spent_ns = thread.now_ns = thread.last_ns = 0;
    for (int i = 0; i < 3'000'000; ++i) thread.allocate();
    const double share = static_cast<double>(thread.spent_ns) / static_cast<double>(thread.now_ns);
    EXPECT_GT(share, 0.004) << bytes;
    EXPECT_LT(share, 0.02) << bytes;
  }
}

TEST(SamplingPace, LeavesTheFirstIntervalWhereItCostsLittle) {
  PacedThread thread(100);
  for (int i = 0; i < 3'000'000; ++i) thread.allocate();
  EXPECT_EQ(thread.pace.interval(), kInterval);
}

TEST(SamplingPace, ComesBackWhenTheProgramAllocatesLess) {
  PacedThread thread(kInterval * 4);
  for (int i = 0; i < 1'000'000; ++i) thread.allocate();
  EXPECT_GT(thread.pace.interval(), kInterval * 1000);
  // A four-hundredth: ten intervals are right now. The next samples are still far apart.
  thread.bytes = kInterval / 100;
  int calls = 0;
  while (calls < 2'000'000 && thread.pace.interval() > kInterval * 50) ++calls, thread.allocate();
  EXPECT_LT(thread.pace.interval(), kInterval * 50);
}

// Weights of the new interval for a distance of the old one would be wrong by up to the factor
// of the change, each time.
TEST(SamplingPace, KeepsSumsOfWeightsUnbiased) {
  double calls = 0;
  double variance = 0;
  constexpr int kCalls = 10'000'000;
  PacedThread thread(kInterval / 2);
  for (int i = 0; i < kCalls; ++i) {
    if (i % 100'000 == 0)
      thread.bytes = thread.bytes == kInterval / 2 ? kInterval * 8 : kInterval / 2;
    const double weight = thread.allocate();
    calls += weight;
    variance += weight * weight;
  }
  EXPECT_NEAR(calls / kCalls, 1, 5 * std::sqrt(variance) / kCalls);
  EXPECT_LT(std::sqrt(variance) / kCalls, 0.03) << "too few samples to tell";
}

class Sites : public testing::Test {
 protected:
  static SiteTable::Stack stack(std::uintptr_t site) {
    SiteTable::Stack made;
    made.depth = 2;
    made.addresses[0] = 0x1001 + site * 16;  // in no module
    made.addresses[1] = 0x900001;
    return made;
  }
  static SampledBlock block(std::uint64_t number, std::uint64_t bytes = 1000, double weight = 2) {
    return {0x7f0000000000 + number * 512, bytes, weight, nullptr, number};
  }
  stats::Sites read() {
    stats::Sites sites;
    EXPECT_TRUE(table_->read(&sites));
    return sites;
  }
  SiteTable* table_ = SiteTable::create({64, 1024});
};

TEST_F(Sites, AreSumsByStackMostBytesFirst) {
  for (std::uint64_t i = 0; i < 10; ++i) table_->allocated(stack(i % 2), block(i, 100 + i % 2));
  const stats::Sites sites = read();
  ASSERT_EQ(sites.sites.size(), 2u);
  EXPECT_EQ(sites.sites[0].figures.samples, 5u);
  EXPECT_EQ(sites.sites[0].figures.calls, 10);
  EXPECT_EQ(sites.sites[0].figures.bytes, 1010);
  EXPECT_EQ(sites.sites[1].figures.bytes, 1000);
  ASSERT_EQ(sites.sites[0].frames.size(), 2u);
  EXPECT_EQ(sites.frames[sites.sites[0].frames[0]].offset, 0x1010u) << "of the call";
  EXPECT_EQ(sites.frames[sites.sites[0].frames[0]].module, -1);
  EXPECT_EQ(sites.sites[0].frames[1], sites.sites[1].frames[1]) << "frames are listed once";
}

TEST_F(Sites, FreesEndWhatIsLiveAndTellTemporaryOnes) {
  const int here = 0;
  SampledBlock mine = block(1);
  mine.thread = &here;
  mine.call = 10;
  SampledFree done;
  table_->allocated(stack(0), mine);
  EXPECT_FALSE(table_->freed(block(2).address, &here, 11, &done));
  EXPECT_TRUE(table_->freed(mine.address, &here, 10 + SiteTable::kTemporaryCalls, &done));
  EXPECT_TRUE(done.temporary);
  EXPECT_FALSE(table_->freed(mine.address, &here, 12, &done)) << "once";
  table_->waited(done);
  table_->allocated(stack(0), mine);
  EXPECT_TRUE(table_->freed(mine.address, &here, 11 + SiteTable::kTemporaryCalls, &done));
  EXPECT_FALSE(done.temporary) << "too late";
  table_->allocated(stack(0), mine);
  EXPECT_TRUE(table_->freed(mine.address, nullptr, 11, &done));
  EXPECT_FALSE(done.temporary) << "by another thread";
  table_->undo(done);
  const stats::SiteFigures figures = read().sites.at(0).figures;
  EXPECT_EQ(figures.calls, 6);
  EXPECT_EQ(figures.freed_calls, 4) << "the refused one is undone";
  EXPECT_EQ(figures.temporary_calls, 2);
  EXPECT_EQ(figures.waited_calls, 2);
  EXPECT_EQ(figures.live_bytes, 2000);
}

TEST_F(Sites, AtThePeakHaveWhatWasLiveThen) {
  SampledFree done;
  table_->allocated(stack(0), block(0, 1000, 1));
  table_->allocated(stack(1), block(1, 5000, 1));
  table_->allocated(stack(0), block(2, 1000, 1));  // 7000: the peak
  EXPECT_TRUE(table_->freed(block(1).address, nullptr, 9, &done));
  table_->allocated(stack(0), block(3, 4000, 1));  // 6000
  const stats::Sites sites = read();
  ASSERT_EQ(sites.sites.size(), 2u);
  EXPECT_EQ(sites.sites[0].figures.bytes, 6000);
  EXPECT_EQ(sites.sites[0].figures.peak_bytes, 2000);
  EXPECT_EQ(sites.sites[0].figures.live_bytes, 6000);
  EXPECT_EQ(sites.sites[1].figures.peak_bytes, 5000);
  table_->allocated(stack(2), block(4, 2000, 1));  // 8000: another one
  const stats::Sites later = read();
  EXPECT_EQ(later.sites[0].figures.peak_bytes, 6000);
  EXPECT_EQ(later.sites[1].figures.peak_bytes, 0);
  EXPECT_EQ(later.sites[2].figures.peak_bytes, 2000);
}

TEST_F(Sites, BeyondTheTableAreOneEntry) {
  for (std::uint64_t i = 0; i < 100; ++i) table_->allocated(stack(i), block(i));
  const stats::Sites sites = read();
  EXPECT_EQ(sites.sites.size(), 48u) << "three quarters of 64";
  EXPECT_EQ(sites.others.samples, 52u);
  EXPECT_EQ(sites.others.live_bytes, 52 * 2000);
  EXPECT_EQ(sites.others.peak_bytes, 52 * 2000);
  SampledFree done;
  for (std::uint64_t i = 0; i < 100; ++i) {
    EXPECT_TRUE(table_->freed(block(i).address, nullptr, 1, &done));
  }
  EXPECT_EQ(read().others.live_bytes, 0);
}

TEST_F(Sites, BeyondTheLiveOnesAreCountedButNotFollowed) {
  for (std::uint64_t i = 0; i < 1000; ++i) table_->allocated(stack(0), block(i));
  EXPECT_EQ(read().unfollowed, 1000u - 768u);
  EXPECT_EQ(read().sites[0].figures.samples, 1000u);
  EXPECT_EQ(read().sites[0].figures.live_calls, 2 * 768);
  SampledFree done;
  int followed = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    followed += table_->freed(block(i).address, nullptr, 1, &done);
  }
  EXPECT_EQ(followed, 768);
  for (std::uint64_t i = 0; i < 1000; ++i) EXPECT_FALSE(table_->may_hold(block(i).address));
}

// Against a plain list: runs in the table close up over what is taken out.
TEST_F(Sites, AreFoundAfterAnyOrderOfFrees) {
  std::vector<bool> live(600);
  std::uint64_t random = 3;
  SampledFree done;
  for (int i = 0; i < 100'000; ++i) {
    const std::size_t number = next_random(&random) % live.size();
    if (live[number]) {
      ASSERT_TRUE(table_->freed(block(number).address, nullptr, 1, &done));
      EXPECT_EQ(done.block.call, number);
    } else {
      table_->allocated(stack(0), block(number));
    }
    live[number] = !live[number];
  }
  double calls = 0;
  for (const bool each : live) calls += each ? 2 : 0;
  EXPECT_EQ(read().sites[0].figures.live_calls, calls);
}

TEST_F(Sites, OfManyThreadsAddUp) {
  constexpr std::uint64_t kThreads = 200;
  constexpr std::uint64_t kRounds = 500;
  std::atomic<std::uint64_t> frees{0};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t, &frees] {
      SampledFree done;
      for (std::uint64_t i = 0; i < kRounds; ++i) {
        table_->allocated(stack(t % 8), block(t * 10000 + i % 2));
        frees += table_->freed(block(t * 10000 + i % 2).address, nullptr, 1, &done);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const stats::Sites sites = read();
  constexpr std::uint64_t kAll = kThreads * kRounds;
  EXPECT_LE(sites.lost, 2 * kAll / 50) << "few wait in vain";
  EXPECT_EQ(sites.unfollowed, 0u);
  std::uint64_t samples = 0;
  double freed = 0;
  for (const stats::Site& site : sites.sites) {
    samples += site.figures.samples;
    freed += site.figures.freed_calls;
  }
  EXPECT_LE(samples, kAll);
  EXPECT_GE(samples + sites.lost, kAll);
  EXPECT_EQ(freed, 2 * static_cast<double>(frees));
  EXPECT_GE(frees + sites.lost, kAll) << "a free that is not noted counts as lost";
}

TEST(PythonFrames, AreKeptOnceUntilThereIsNoRoom) {
  auto frames = std::make_unique<PythonFrames>();
  const std::uint64_t first = frames->frame_of({"train", "a.py", 7});
  EXPECT_EQ(frames->frame_of({"train", "a.py", 7}), first);
  EXPECT_NE(frames->frame_of({"train", "a.py", 8}), first);
  EXPECT_NE(frames->frame_of({"train", "b.py", 7}), first);
  EXPECT_NE(frames->frame_of({"trai", "na.py", 7}), first);
  stats::SiteFrame described;
  ASSERT_TRUE(frames->describe(first, &described));
  EXPECT_EQ(described.function + " " + described.file, "train a.py");
  EXPECT_EQ(described.line, 7u);
  EXPECT_FALSE(frames->describe(PackedFrame::pack(3, 7), &described));
  std::uint64_t last = first;
  for (std::uint32_t line = 100; line < 5000; ++line) last = frames->frame_of({"f", "c.py", line});
  EXPECT_EQ(last, 0u);
  EXPECT_EQ(frames->frame_of({"train", "a.py", 7}), first) << "known ones stay";
}

TEST(LoadedModules, TellWhereAFunctionIs) {
  auto modules = std::make_unique<LoadedModules>();
  modules->refresh();
  const auto here = reinterpret_cast<std::uintptr_t>(&probability_of_sample) + 1;
  const std::uint64_t frame = modules->frame_of(here);
  ASSERT_NE(PackedFrame::module_of(frame), PackedFrame::kUnknown);
  const stats::SiteModule own = modules->list().at(PackedFrame::module_of(frame) - 1);
  EXPECT_NE(own.path.find("cupool_unit_tests"), std::string::npos) << own.path;
  EXPECT_EQ(PackedFrame::module_of(modules->frame_of(1)), PackedFrame::kUnknown);
  const std::size_t before = modules->list().size();
  modules->refresh();
  EXPECT_EQ(modules->list().size(), before);
}

}  // namespace
}  // namespace cupool::trace
