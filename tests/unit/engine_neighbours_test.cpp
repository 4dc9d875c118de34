// SPDX-License-Identifier: Apache-2.0
// Requests to neighbours: for how long which of them are not repeated (docs/design.md, Neighbours).
#include "engine/ipc/neighbours.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>

#include "channel/socket.h"
#include "engine_busy_neighbour.h"
#include "util/clock.h"

namespace cupool::engine::ipc {
namespace {

using channel::DeviceId;
using Answer = Neighbours::Answer;

class NeighboursOfTwoDevices : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(neighbour_.valid()); }
  Answer ask(const DeviceId& for_device) {
    return neighbours_.ask(for_device, 1 << 20, Neighbours::kLongestAskNs);
  }
  BusyNeighbour neighbour_;
  Neighbours neighbours_;
};

TEST_F(NeighboursOfTwoDevices, MayHaveMemoryOfOneWhenACallGaveUpOnTheOther) {
  EXPECT_EQ(ask(test_device(0)), Answer::later);
  EXPECT_EQ(ask(test_device(1)), Answer::later);
  neighbours_.give_up(test_device(0), Neighbours::kLongestWaitNs);
  EXPECT_EQ(ask(test_device(1)), Answer::later);
  EXPECT_EQ(ask(test_device(0)), Answer::nothing);
  EXPECT_EQ(ask(test_device(1)), Answer::later);
  EXPECT_EQ(ask(test_device(0)), Answer::nothing) << "whatever was asked for since";
  EXPECT_EQ(neighbour_.requests(test_device(0)), 1);
}

// A socket that looks like a neighbour's, without a thread.
channel::Descriptor other_neighbour() {
  char name[64];
  std::snprintf(name, sizeof name, "cupool-neighbour-%u-%08x%08x", static_cast<unsigned>(geteuid()),
                1u, static_cast<unsigned>(getpid()));
  return channel::listen_at(name);
}

// What one of them uses may be idle in a moment, however long another one is silent.
TEST_F(NeighboursOfTwoDevices, AreAskedAgainBesideOneThatIsStopped) {
  const channel::Descriptor stopped = other_neighbour();
  ASSERT_TRUE(stopped.valid());
  const std::uint64_t until = util::now_ns() + Neighbours::kLongestWaitNs;
  for (std::uint64_t now = 0; (now = util::now_ns()) < until; usleep(20'000)) {
    EXPECT_EQ(neighbours_.ask(test_device(0), 1 << 20, until - now), Answer::later);
  }
  EXPECT_GE(neighbour_.requests(test_device(0)), 2);
}

}  // namespace
}  // namespace cupool::engine::ipc
