// SPDX-License-Identifier: Apache-2.0
// A neighbour (docs/design.md, Neighbours) of the test's own process, which counts what it is
// asked.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "channel/messages.h"
#include "channel/socket.h"
#include "util/clock.h"

namespace cupool::engine::ipc {

/// Names that no other test's devices have, of those that run beside this one neither.
inline channel::DeviceId test_device(int number) {
  channel::DeviceId id{};
  id[0] = 0xd7;
  id[1] = static_cast<unsigned char>(number);
  const pid_t process = getpid();
  std::memcpy(id.data() + 4, &process, sizeof process);
  return id;
}

/// Shares those devices and has nothing to give.
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
  int requests(const channel::DeviceId& for_device) {
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
    reply.shares_device = request.device[0] == test_device(0)[0] ? 1 : 0;
    channel::send_message(socket.get(), &reply, sizeof reply, -1, soon);
  }

  channel::Descriptor listener_;
  std::atomic<bool> ends_{false};
  std::thread answering_;
  std::mutex mutex_;
  std::map<channel::DeviceId, int> requests_;
};

}  // namespace cupool::engine::ipc
