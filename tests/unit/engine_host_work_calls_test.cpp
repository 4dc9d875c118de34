// SPDX-License-Identifier: Apache-2.0
// Frees beside calls under way whose work touches host memory (contract 2).
#include "engine/reclaim/host_work_calls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "util/clock.h"

namespace cupool::engine {
namespace {

TEST(HostWorkCallsTest, WhatIsUnderWayIsNotNoted) {
  HostWorkCalls calls;
  EXPECT_FALSE(calls.any());
  EXPECT_TRUE(calls.are_noted());
  {
    const HostWorkCalls::Call call(&calls);
    EXPECT_TRUE(calls.any());
    const std::uint64_t begin = util::now_ns();
    EXPECT_FALSE(calls.are_noted());
    EXPECT_LT(util::now_ns() - begin, 100'000'000u) << "it may take as long as the GPU";
    const HostWorkCalls::Call second(&calls);
    EXPECT_FALSE(calls.are_noted());
  }
  EXPECT_FALSE(calls.any());
  EXPECT_TRUE(calls.are_noted());
}

// It may be in a call whenever another thread looks, but never in the same one.
TEST(HostWorkCallsTest, AThreadThatGoesFromCallToCallHoldsUpNobody) {
  HostWorkCalls of_context;
  std::atomic<bool> over{false};
  std::atomic<int> begun{0};
  std::thread calls([&] {
    while (!over) {
      const HostWorkCalls::Call call(&of_context);
      ++begun;
      std::this_thread::yield();
    }
  });
  while (begun == 0) std::this_thread::yield();
  // Judged is a time in which the thread had a processor.
  constexpr int kLooks = 1000;
  int noted = 0;
  int meanwhile = 0;
  const std::uint64_t end = util::now_ns() + 10'000'000'000;
  while (meanwhile < kLooks && util::now_ns() < end) {
    const int before = begun;
    noted = 0;
    for (int i = 0; i < kLooks; ++i) noted += of_context.are_noted() ? 1 : 0;
    meanwhile = begun - before;
  }
  over = true;
  calls.join();
  EXPECT_GE(meanwhile, kLooks);
  EXPECT_GT(noted, 50);
  EXPECT_TRUE(of_context.are_noted());
}

// What the noting thread wrote before the end of its call is seen behind it.
TEST(HostWorkCallsTest, ANoteIsSeenOnceItsCallIsOver) {
  HostWorkCalls of_context;
  for (int round = 0; round < 2000; ++round) {
    std::atomic<bool> submitted{false};
    int note = 0;
    std::thread calls([&] {
      const HostWorkCalls::Call call(&of_context);
      submitted = true;
      note = 1;
    });
    while (!submitted) {
    }
    const bool noted = of_context.are_noted();
    if (noted) {
      EXPECT_EQ(note, 1);
    }
    calls.join();
  }
}

}  // namespace
}  // namespace cupool::engine
