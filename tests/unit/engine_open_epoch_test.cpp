// SPDX-License-Identifier: Apache-2.0
// The open epoch: who joins it is told its number, and it has all bytes of those who were told so.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>
#include <vector>

#include "engine/reclaim/open_epoch.h"

namespace cupool::engine {
namespace {

TEST(OpenEpochTest, BytesAndFreesAreThoseOfTheEpochThatWasJoined) {
  OpenEpoch open;
  EXPECT_EQ(open.number(), EpochNumber{1});
  EXPECT_TRUE(open.empty());
  EXPECT_FALSE(open.has_frees());
  EXPECT_EQ(open.join(1024, 2), EpochNumber{1});
  EXPECT_EQ(open.join(512, 1), EpochNumber{1});
  EXPECT_EQ(open.bytes(), 1536u);
  EXPECT_TRUE(open.has_frees());
  const OpenEpoch::Closed closed = open.close();
  EXPECT_EQ(closed.number, EpochNumber{1});
  EXPECT_EQ(closed.bytes, 1536u);
  EXPECT_EQ(closed.frees, 3u);
  EXPECT_TRUE(open.empty());
  EXPECT_FALSE(open.has_frees());
  EXPECT_EQ(open.join(1ull << 40, 1), EpochNumber{2});
  EXPECT_EQ(open.bytes(), 1ull << 40);
  open.close();
  EXPECT_EQ(open.join(0, 1), EpochNumber{3});
  EXPECT_TRUE(open.has_frees()) << "of page-locked memory";
}

TEST(OpenEpochTest, WithBytesItHoldsAFreeThoughNoneIsCountedYet) {
  OpenEpoch open;
  open.join(512, 0);  // the count of a batch may have gone with the epoch before
  EXPECT_TRUE(open.has_frees());
}

TEST(OpenEpochTest, NumbersGoOnBeyondWhatTheWordHolds) {
  OpenEpoch open;
  constexpr EpochNumber kBeyond{(1u << 24) + 11};
  EpochNumber number{1};
  while (number != kBeyond && open.number() == number && open.close().number == number) {
    number = next(number);
  }
  ASSERT_EQ(number, kBeyond);
  EXPECT_EQ(open.join(512, 1), kBeyond);
}

TEST(OpenEpochTest, NothingIsLostBetweenJoiningAndClosing) {
  constexpr unsigned kThreads = 4;
  constexpr unsigned kJoins = 20000;
  OpenEpoch open;
  std::vector<std::map<EpochNumber, std::uint64_t>> joined(kThreads);
  std::atomic<unsigned> running{kThreads};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < kJoins; ++i) {
        const std::uint64_t bytes = 512ull * (1 + (i + t) % 7);
        joined[t][open.join(bytes, 1)] += bytes;
      }
      running.fetch_sub(1);
    });
  }
  std::map<EpochNumber, std::uint64_t> closed;
  std::size_t frees = 0;
  const auto close = [&] {
    const OpenEpoch::Closed epoch = open.close();
    EXPECT_EQ(epoch.number, EpochNumber{closed.size() + 1});
    closed[epoch.number] = epoch.bytes;
    frees += epoch.frees;
  };
  while (running.load() != 0) close();
  for (std::thread& thread : threads) thread.join();
  close();
  for (const auto& of_thread : joined) {
    for (const auto& [number, bytes] : of_thread) closed[number] -= bytes;
  }
  for (const auto& [number, rest] : closed) EXPECT_EQ(rest, 0u) << "epoch " << value_of(number);
  EXPECT_EQ(frees, std::size_t{kThreads} * kJoins);
}

}  // namespace
}  // namespace cupool::engine
