// SPDX-License-Identifier: Apache-2.0
// The record of the lane's transitions, with times that a reader can add up.
#include "engine/reclaim/lane_history.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace cupool::engine {
namespace {

class LaneHistoryTest : public testing::Test {
 protected:
  LaneHistoryTest() { LaneHistory::reset(); }
  ~LaneHistoryTest() override { LaneHistory::reset(); }

  static std::uint64_t inside_at(std::uint64_t now_ns) {
    const std::optional<stats::LaneFigures> figures = LaneHistory::read(now_ns);
    return figures ? figures->inside_ns : UINT64_MAX;
  }
};

TEST_F(LaneHistoryTest, IsEmptyBeforeAnyWork) {
  EXPECT_FALSE(LaneHistory::read(1000));
}

TEST_F(LaneHistoryTest, TheTimeAwayDoesNotCount) {
  LaneHistory::opened(1000);
  EXPECT_EQ(inside_at(1000), 0u);
  EXPECT_EQ(inside_at(1030), 30u);
  LaneHistory::away(1050, "first");
  EXPECT_EQ(inside_at(2000), 50u);
  LaneHistory::returned(2000);
  EXPECT_EQ(inside_at(2007), 57u);
  EXPECT_EQ(inside_at(1900), 0u) << "the reader's time may be older than the return";
  LaneHistory::away(2010, "second");
  LaneHistory::returned(3000);
  EXPECT_EQ(inside_at(3001), 61u);
  const stats::LaneFigures figures = LaneHistory::read(3001).value();
  EXPECT_EQ(figures.away, 2u);
  EXPECT_STREQ(figures.last_call, "second");
  EXPECT_EQ(figures.end, nullptr);
  EXPECT_EQ(figures.end_call, nullptr);
}

TEST_F(LaneHistoryTest, StopsWhenItIsLeftForGood) {
  LaneHistory::opened(1000);
  LaneHistory::left(1080, "because", "a call");
  const stats::LaneFigures figures = LaneHistory::read(5000).value();
  EXPECT_EQ(figures.inside_ns, 80u);
  EXPECT_EQ(figures.away, 0u);
  EXPECT_EQ(figures.last_call, nullptr);
  EXPECT_STREQ(figures.end, "because");
  EXPECT_STREQ(figures.end_call, "a call");
}

TEST_F(LaneHistoryTest, MayBeLeftWhileAwayAndByNoKnownCall) {
  LaneHistory::opened(1000);
  LaneHistory::away(1080, "led away");
  LaneHistory::left(9000, "because", nullptr);
  const stats::LaneFigures figures = LaneHistory::read(9999).value();
  EXPECT_EQ(figures.inside_ns, 80u);
  EXPECT_STREQ(figures.last_call, "led away");
  EXPECT_STREQ(figures.end, "because");
  EXPECT_EQ(figures.end_call, nullptr);
}

TEST_F(LaneHistoryTest, SaysWhatExcludedALaneThatNeverWas) {
  LaneHistory::left(1080, "because", nullptr);
  const stats::LaneFigures figures = LaneHistory::read(9999).value();
  EXPECT_EQ(figures.inside_ns, 0u);
  EXPECT_STREQ(figures.end, "because");
}

// No stay counts twice, whenever it is read, and a call is there once it counts.
TEST_F(LaneHistoryTest, IsReadBesideItsChanges) {
  constexpr std::uint64_t kRounds = 20'000;
  LaneHistory::opened(1);
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done) {
      const stats::LaneFigures figures = LaneHistory::read(2 * kRounds + 2).value();
      EXPECT_LE(figures.inside_ns, 2 * kRounds + 1);
      if (figures.away != 0) {
        EXPECT_STREQ(figures.last_call, "a call");
      }
    }
  });
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    LaneHistory::away(2 * round, "a call");
    LaneHistory::returned(2 * round + 1);
  }
  done = true;
  reader.join();
  EXPECT_EQ(inside_at(2 * kRounds + 1), kRounds);
  EXPECT_EQ(LaneHistory::read(0)->away, kRounds);
}

}  // namespace
}  // namespace cupool::engine
