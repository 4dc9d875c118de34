// SPDX-License-Identifier: Apache-2.0
// Requests to neighbours: for how long which of them are not repeated (docs/design.md, Neighbours).
#include "engine/ipc/neighbours.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>
#include <thread>

#include "channel/socket.h"
#include "util/clock.h"

namespace cupool::engine::ipc {
namespace {

using channel::DeviceId;
using Answer = Neighbours::Answer;

DeviceId device(int number) {
  DeviceId id{};
  id[0] = 0xd7;  // no other test's
  id[1] = static_cast<unsigned char>(number);
  return id;
}

// Shares these devices and has nothing to give.
class BusyNeighbour {
 public:
  BusyNeighbour() {
    char name[64];
    std::snprintf(name, sizeof name, "cupool-neighbour-%u-%016x", static_cast<unsigned>(geteuid()),
                  static_cast<unsigned>(getpid()));
    listener_ = channel::listen_at(name);
    answering_ = std::thread([this] {
      while (!ends_.load()) answer_next();
    });
  }
  ~BusyNeighbour() {
    ends_.store(true);
    answering_.join();
  }
  bool valid() const { return listener_.valid(); }
  int requests(const DeviceId& for_device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return requests_[for_device];
  }

 private:
  void answer_next() {
    bool more = false;
    const channel::Descriptor socket = channel::accept_own(listener_, &more);
    if (!socket.valid()) {
      usleep(500);
      return;
    }
    channel::NeighbourRequest request;
    const std::uint64_t soon = util::now_ns() + 1'000'000'000;
    if (channel::receive_message(socket.get(), &request, sizeof request, nullptr, soon) !=
        channel::Transfer::done) {
      return;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++requests_[request.device];
    }
    channel::NeighbourReply reply;
    reply.shares_device = request.device[0] == device(0)[0] ? 1 : 0;
    channel::send_message(socket.get(), &reply, sizeof reply, -1, soon);
  }

  channel::Descriptor listener_;
  std::atomic<bool> ends_{false};
  std::thread answering_;
  std::mutex mutex_;
  std::map<DeviceId, int> requests_;
};

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
  EXPECT_EQ(ask(device(0)), Answer::later);
  EXPECT_EQ(ask(device(1)), Answer::later);
  neighbours_.give_up(device(0), Neighbours::kLongestWaitNs);
  EXPECT_EQ(ask(device(1)), Answer::later);
  EXPECT_EQ(ask(device(0)), Answer::nothing);
  EXPECT_EQ(ask(device(1)), Answer::later);
  EXPECT_EQ(ask(device(0)), Answer::nothing) << "whatever was asked for since";
  EXPECT_EQ(neighbour_.requests(device(0)), 1);
}

}  // namespace
}  // namespace cupool::engine::ipc
