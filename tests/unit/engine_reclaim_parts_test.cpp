// SPDX-License-Identifier: Apache-2.0
// Small parts of reclaim/ that the process has one of: devices in use, frees that left their wait
// to a message, and the count of those inside a short section.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "engine/reclaim/device_use.h"
#include "engine/reclaim/message_calls.h"
#include "engine/reclaim/use_count.h"

namespace cupool::engine {
namespace {

TEST(DeviceUseTest, OnlyDevicesThatExistAreInUse) {  // contract 7
  EXPECT_FALSE(note_device_in_use(-1));
  EXPECT_FALSE(device_in_use(-1));
  EXPECT_FALSE(note_device_in_use(stats::kMaxDevices));
  EXPECT_FALSE(device_in_use(stats::kMaxDevices));
  const int last = stats::kMaxDevices - 1;
  EXPECT_FALSE(device_in_use(last));
  EXPECT_TRUE(note_device_in_use(last));
  EXPECT_TRUE(device_in_use(last));
  EXPECT_FALSE(note_device_in_use(last)) << "it is already";
  detail::devices_in_use[last] = false;
}

TEST(MessageCallsTest, AThreadKnowsItsNewestFreeInEachOfSomeContexts) {  // contract 8
  MessageCalls::reset();
  std::array<char, MessageCalls::Own::kContexts + 1> contexts{};
  MessageCalls::note_own(&contexts[0], EpochNumber{1});
  MessageCalls::note_own(&contexts[1], EpochNumber{2});
  MessageCalls::note_own(&contexts[0], EpochNumber{3});
  const MessageCalls::Own& own = MessageCalls::own();
  EXPECT_EQ(own.newest[0].epoch, EpochNumber{3});
  EXPECT_EQ(own.newest[1].epoch, EpochNumber{2});
  EXPECT_EQ(own.newest[2].context, nullptr);
  for (std::size_t i = 2; i < MessageCalls::Own::kContexts; ++i) {
    MessageCalls::note_own(&contexts[i], EpochNumber{4});
  }
  EXPECT_FALSE(own.more);
  MessageCalls::note_own(&contexts.back(), EpochNumber{5});
  EXPECT_TRUE(own.more);
  MessageCalls::reset();
}

TEST(MessageCallsTest, WhatIsSettledStaysSo) {  // contract 8
  MessageCalls::reset();
  MessageCalls::settle(5);
  MessageCalls::settle(3);
  EXPECT_TRUE(MessageCalls::are_settled(5));
  EXPECT_FALSE(MessageCalls::are_settled(6));
  MessageCalls::reset();
}

TEST(UseCountTest, AWaitOutlastsAUseThatTakesItsTime) {
  UseCount count;
  std::atomic<bool> inside{false};
  std::atomic<bool> leaves{false};
  std::thread user([&] {
    const UseCount::Use use(count);
    inside = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    leaves = true;
  });
  while (!inside) std::this_thread::yield();
  EXPECT_TRUE(count.wait_until_none());
  EXPECT_TRUE(leaves);
  user.join();
  EXPECT_FALSE(count.any());
}

}  // namespace
}  // namespace cupool::engine
