// SPDX-License-Identifier: Apache-2.0
// A lock whose holder may never give it back.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "process/bounded.h"

namespace cupool::process {
namespace {

TEST(BoundedLockTest, WaitsForTheHolderForALimitedTime) {
  std::mutex mutex;
  std::atomic<int> step{0};
  std::thread holder([&] {
    const BoundedLock lock(mutex, std::chrono::milliseconds(0));
    EXPECT_TRUE(lock) << "nobody has it";
    step = 1;
    while (step != 2) std::this_thread::yield();
  });
  while (step != 1) std::this_thread::yield();
  EXPECT_FALSE(BoundedLock(mutex, std::chrono::milliseconds(0)));
  EXPECT_FALSE(BoundedLock(mutex, std::chrono::milliseconds(5)));
  EXPECT_EQ(step, 1);
  step = 2;
  EXPECT_TRUE(BoundedLock(mutex, std::chrono::minutes(1)));
  holder.join();
  EXPECT_TRUE(mutex.try_lock()) << "it was given back";
  mutex.unlock();
}

}  // namespace
}  // namespace cupool::process
