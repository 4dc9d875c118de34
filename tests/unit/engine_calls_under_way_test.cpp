// SPDX-License-Identifier: Apache-2.0
// Waits for the calls that submit work: each that is under way, but none that begins later.
#include "engine/reclaim/calls_under_way.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace cupool::engine {
namespace {

constexpr std::uint64_t kLongNs = 20'000'000'000;
constexpr auto kInto = CallsUnderWay::Into::explicit_stream;

TEST(CallsUnderWayTest, WaitsForTheCallsThatAreUnderWay) {
  EXPECT_TRUE(CallsUnderWay::wait_for(kInto, 0));
  const CallsUnderWay::Call other(CallsUnderWay::Into::default_stream);
  EXPECT_TRUE(CallsUnderWay::wait_for(kInto, 0)) << "those of the other kind do not count";
  const CallsUnderWay::Call call;
  EXPECT_FALSE(CallsUnderWay::wait_for(kInto, 1'000'000));
}

// Threads whose calls overlap, so that at no time there is none.
TEST(CallsUnderWayTest, WaitsForNoneThatBeginsLater) {
  std::atomic<int> turn{0};
  std::atomic<std::size_t> line{kCallLines};
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  std::atomic<int> rounds{0};
  const auto take_turns = [&](int mine) {
    while (!over) {
      const CallsUnderWay::Call call;
      turn = mine;
      while (turn == mine && !over) std::this_thread::yield();
      ++rounds;
    }
  };
  threads.emplace_back([&] {
    line = line_of_thread<kCallLines>();
    take_turns(1);
  });
  while (line == kCallLines) std::this_thread::yield();
  // The second one counts on another line.
  for (std::atomic<bool> found{false}; !found;) {
    std::atomic<bool> looked{false};
    threads.emplace_back([&] {
      const bool counts_elsewhere = line_of_thread<kCallLines>() != line;
      found = counts_elsewhere;
      looked = true;
      if (counts_elsewhere) take_turns(2);
    });
    while (!looked) std::this_thread::yield();
  }
  while (rounds < 10) std::this_thread::yield();
  EXPECT_TRUE(CallsUnderWay::wait_for(kInto, kLongNs));
  over = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace cupool::engine
