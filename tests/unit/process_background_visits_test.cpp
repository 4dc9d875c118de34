// SPDX-License-Identifier: Apache-2.0
// The end of the process beside a background thread's visit.
#include "process/background_visits.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace cupool::process {
namespace {

// Visits end for good, so one test tells it all.
TEST(BackgroundVisits, HoldUpTheEndOfTheProcessForALimitedTime) {
  std::atomic<int> step{0};
  std::thread visitor([&] {
    const BackgroundVisit visit;
    EXPECT_TRUE(visit.allowed());
    step = 1;
    while (step != 2) std::this_thread::yield();
  });
  while (step != 1) std::this_thread::yield();
  EXPECT_FALSE(end_background_visits(std::chrono::milliseconds(20)));
  EXPECT_EQ(step, 1) << "the visit goes on: a kernel holds it up";
  EXPECT_FALSE(BackgroundVisit().allowed());
  std::thread end([] { EXPECT_TRUE(end_background_visits()); });
  step = 2;
  visitor.join();
  end.join();
}

}  // namespace
}  // namespace cupool::process
