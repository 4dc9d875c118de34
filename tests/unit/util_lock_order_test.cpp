// SPDX-License-Identifier: Apache-2.0
// The order of locks: what builds without NDEBUG refuse.
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "util/lock_order.h"

namespace cupool::util {
namespace {

using Outer = Ranked<LockRank::thread_cache_stock>;
using Inner = Ranked<LockRank::ordering>;
using Leaf = Ranked<LockRank::block_cache>;
using LaterLeaf = Ranked<LockRank::pointer_map>;

TEST(LockOrderTest, DownTheTableLocksNest) {
  Outer outer;
  Inner inner;
  Leaf leaf;
  for (int i = 0; i < 2; ++i) {
    const std::lock_guard a(outer);
    const std::lock_guard b(inner);
    const std::lock_guard c(leaf);
  }
}

TEST(LockOrderTest, LocksMayBeReleasedInAnyOrder) {
  Outer outer;
  Inner inner;
  outer.lock();
  inner.lock();
  outer.unlock();
  inner.unlock();
  const std::lock_guard again(outer);
}

TEST(LockOrderTest, EachThreadHasItsOwn) {
  Outer outer;
  Inner inner;
  const std::lock_guard held(inner);
  std::thread([&] { const std::lock_guard lock(outer); }).join();
}

TEST(LockOrderTest, ALockThatIsOnlyTriedMayBeOutOfOrder) {
  Outer outer;
  Inner inner;
  const std::lock_guard held(inner);
  ASSERT_TRUE(outer.try_lock());
  outer.unlock();
}

#ifndef NDEBUG
using LockOrderDeathTest = testing::Test;

template <typename First, typename Second>
void take_both() {
  First first;
  Second second;
  const std::lock_guard a(first);
  const std::lock_guard b(second);
}

TEST(LockOrderDeathTest, UpTheTableEndsTheProcess) {
  EXPECT_DEATH((take_both<Inner, Outer>()), "thread_cache_stock is taken while ordering is");
}

TEST(LockOrderDeathTest, TwoLocksOfOneRankEndTheProcess) {
  EXPECT_DEATH((take_both<Inner, Inner>()), "ordering is taken while ordering is held");
}

TEST(LockOrderDeathTest, NothingIsTakenUnderALeaf) {
  EXPECT_DEATH((take_both<Leaf, LaterLeaf>()), "pointer_map is taken while block_cache is held");
}

TEST(LockOrderDeathTest, ATriedLockCountsAsHeld) {
  const auto wrong = [] {
    Inner inner;
    Outer outer;
    if (!inner.try_lock()) return;
    const std::lock_guard lock(outer);
  };
  EXPECT_DEATH(wrong(), "thread_cache_stock is taken while ordering is held");
}

TEST(LockOrderDeathTest, WhatIsNotHeldIsNotReleased) {
  const auto wrong = [] {
    Outer outer;
    outer.unlock();
  };
  EXPECT_DEATH(wrong(), "thread_cache_stock is released by a thread that does not hold it");
}
#endif

}  // namespace
}  // namespace cupool::util
