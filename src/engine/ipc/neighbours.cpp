// SPDX-License-Identifier: Apache-2.0
// Asks all at once, and waits for the sum of their answers.
#include "engine/ipc/neighbours.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "channel/directory.h"
#include "stats/pool_growth.h"
#include "util/clock.h"
#include "util/uncancelled.h"

namespace cupool::engine::ipc {
namespace {

using namespace channel;

// How long a request waits for one of many that it has asked before it asks others in their place.
constexpr std::uint64_t kLongestTurnNs = 20'000'000;
// How long it waits for answers once it has asked all. A small part of Neighbours::kLongestWaitNs:
// while one neighbour is silent, the others have to be asked again.
constexpr std::uint64_t kLongestSilenceNs = 150'000'000;

// The connections of one request, and what has come of them.
class Round {
 public:
  Round(const NeighbourRequest& request, std::uint64_t enough, std::uint64_t deadline_ns)
      : request_(request), enough_(enough), deadline_ns_(deadline_ns) {}

  // Asks all, and waits for answers until they add up to `enough`. Returns what was given.
  std::uint64_t ask() {
    connect_to_neighbours(deadline_ns_, [&](Descriptor socket, const Peer&) {
      if (count_ == sockets_.size()) make_room();
      if (given_ >= enough_) return false;
      if (send_message(socket.get(), &request_, sizeof request_, -1, 0) == Transfer::done) {
        sockets_[count_++] = std::move(socket);
      }
      return true;
    });
    const std::uint64_t until_ns = std::min(deadline_ns_, util::now_ns() + kLongestSilenceNs);
    while (given_ < enough_ && receive(until_ns)) {
    }
    if (util::now_ns() >= deadline_ns_) may_share_ = true;  // not all may have been asked
    return given_;
  }

  // Whether a neighbour may have memory of the device later. One that has not answered may.
  bool may_share() const { return may_share_ || count_ != 0; }

 private:
  // Whoever has not answered by then has the request all the same, and gives what it can.
  void make_room() {
    receive(std::min(deadline_ns_, util::now_ns() + kLongestTurnNs));
    if (count_ != sockets_.size()) return;
    may_share_ = true;
    while (count_ != 0) sockets_[--count_].reset();
  }

  // Waits for some answers. False: nobody is left to answer, or the time is over.
  bool receive(std::uint64_t until_ns) {
    const std::uint64_t now = util::now_ns();
    if (count_ == 0 || now >= until_ns) return false;
    for (std::size_t i = 0; i < count_; ++i) {
      polled_[i] = {sockets_[i].keeps() ? sockets_[i].get() : -1, POLLIN, 0};
    }
    const int milliseconds = static_cast<int>((until_ns - now) / 1'000'000) + 1;
    if (poll(polled_.data(), count_, milliseconds) < 0) return true;
    std::size_t left = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      if (polled_[i].fd < 0 || polled_[i].revents != 0) {
        take_answer(sockets_[i]);
      } else if (left++ != i) {
        sockets_[left - 1] = std::move(sockets_[i]);
      }
    }
    count_ = left;
    return true;
  }

  void take_answer(Descriptor& socket) {
    NeighbourReply reply;
    if (socket.keeps() &&
        receive_message(socket.get(), &reply, sizeof reply, nullptr, 0) == Transfer::done &&
        reply.magic == kNeighbourMagic) {
      given_ += std::min(reply.given_bytes, UINT64_MAX - given_);
      may_share_ = may_share_ || reply.shares_device != 0;
    }
    socket.reset();
  }

  const NeighbourRequest& request_;
  const std::uint64_t enough_;
  const std::uint64_t deadline_ns_;
  std::uint64_t given_ = 0;
  bool may_share_ = false;
  std::size_t count_ = 0;
  std::array<Descriptor, Neighbours::kMostNeighbours> sockets_;
  std::array<pollfd, Neighbours::kMostNeighbours> polled_{};
};

}  // namespace

Neighbours::Answer Neighbours::ask(const DeviceId& device, std::uint64_t wanted_bytes,
                                   std::uint64_t limit_ns) {
  if (device == kNoDevice || limit_ns == 0) return Answer::nothing;
  const util::Uncancelled throughout;
  const std::uint64_t asked_ns = util::now_ns();
  const std::lock_guard lock(mutex_);
  Asked& asked = asked_for(device);
  if (asked.given_ns >= asked_ns) return Answer::gave;
  const std::uint64_t start_ns = util::now_ns();
  if (start_ns < asked.quiet_until_ns) return asked.quiet_answer;
  NeighbourRequest request;
  request.device = device;
  request.wanted_bytes = wanted_bytes;
  // A pool grows by whole steps.
  const bool known = wanted_bytes != 0 && wanted_bytes < UINT64_MAX - stats::kPoolGrowthStep;
  const std::uint64_t enough = known ? wanted_bytes + stats::kPoolGrowthStep : UINT64_MAX;
  Round round(request, enough, start_ns + std::min(limit_ns, kLongestAskNs));
  if (round.ask() != 0) {
    asked.given_ns = start_ns;
    return Answer::gave;
  }
  const std::uint64_t end_ns = util::now_ns();
  asked.quiet_until_ns = end_ns + std::max(kAskAgainNs, end_ns - start_ns);
  asked.quiet_answer = round.may_share() ? Answer::later : Answer::nothing;
  return asked.quiet_answer;
}

void Neighbours::give_up(const DeviceId& device, std::uint64_t waited_ns) {
  const std::lock_guard lock(mutex_);
  Asked& asked = asked_for(device);
  asked.quiet_until_ns = std::max(asked.quiet_until_ns, util::now_ns() + waited_ns);
  asked.quiet_answer = Answer::nothing;
}

// There is a place for each device of a process.
Neighbours::Asked& Neighbours::asked_for(const DeviceId& device) {
  for (Asked& asked : asked_) {
    if (asked.device == kNoDevice) asked.device = device;
    if (asked.device == device) return asked;
  }
  return asked_.back();
}

}  // namespace cupool::engine::ipc
