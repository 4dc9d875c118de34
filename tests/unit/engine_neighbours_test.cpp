// SPDX-License-Identifier: Apache-2.0
// Requests to neighbours: for how long which of them are not repeated (docs/design.md, Neighbours).
#include "engine/ipc/neighbours.h"

#include <gtest/gtest.h>

#include "engine_busy_neighbour.h"

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

}  // namespace
}  // namespace cupool::engine::ipc
