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

// The connections of one request, and what has come of them.
class Round {
 public:
  explicit Round(std::uint64_t deadline_ns) : deadline_ns_(deadline_ns) {}

  void send(const NeighbourRequest& request) {
    connect_to_neighbours(deadline_ns_, [&](Descriptor socket, const Peer&) {
      if (send_message(socket.get(), &request, sizeof request, -1, 0) == Transfer::done) {
        sockets_[count_++] = std::move(socket);
      }
      return count_ != sockets_.size();
    });
  }

  // Waits for answers until they add up to `enough`.
  std::uint64_t receive(std::uint64_t enough) {
    std::uint64_t given = 0;
    while (given < enough && wait()) {
      for (std::size_t i = 0; i < count_; ++i) {
        NeighbourReply reply;
        if (polled_[i].revents == 0) continue;
        if (sockets_[i].keeps() &&
            receive_message(sockets_[i].get(), &reply, sizeof reply, nullptr, 0) ==
                Transfer::done &&
            reply.magic == kNeighbourMagic) {
          given += std::min(reply.given_bytes, UINT64_MAX - given);
          shared_ = shared_ || reply.shares_device != 0;
        }
        sockets_[i].reset();
      }
    }
    return given;
  }

  // Whether a neighbour may have memory of the device later. One that has not answered may.
  bool may_share() const {
    return shared_ || std::any_of(sockets_.begin(), sockets_.end(),
                                  [](const Descriptor& each) { return each.valid(); });
  }

 private:
  // False: nobody is left to answer, or the time is over.
  bool wait() {
    bool any = false;
    for (std::size_t i = 0; i < count_; ++i) {
      polled_[i] = {sockets_[i].keeps() ? sockets_[i].get() : -1, POLLIN, 0};
      any = any || sockets_[i].valid();
    }
    const std::uint64_t now = util::now_ns();
    if (!any || now >= deadline_ns_) return false;
    const int milliseconds = static_cast<int>((deadline_ns_ - now) / 1'000'000) + 1;
    if (poll(polled_.data(), count_, milliseconds) < 0) {
      for (pollfd& each : polled_) each.revents = 0;
    }
    return true;
  }

  const std::uint64_t deadline_ns_;
  std::size_t count_ = 0;
  bool shared_ = false;
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
  if (given_ns_ >= asked_ns) return Answer::gave;
  const std::uint64_t start_ns = util::now_ns();
  if (start_ns < quiet_until_ns_ && device == quiet_device_) return quiet_answer_;
  Round round(start_ns + std::min(limit_ns, kLongestAskNs));
  NeighbourRequest request;
  request.device = device;
  request.wanted_bytes = wanted_bytes;
  round.send(request);
  // A pool grows by whole steps.
  const bool known = wanted_bytes != 0 && wanted_bytes < UINT64_MAX - stats::kPoolGrowthStep;
  const std::uint64_t enough = known ? wanted_bytes + stats::kPoolGrowthStep : UINT64_MAX;
  if (round.receive(enough) != 0) {
    given_ns_ = start_ns;
    return Answer::gave;
  }
  const std::uint64_t end_ns = util::now_ns();
  quiet_until_ns_ = end_ns + std::max(kAskAgainNs, end_ns - start_ns);
  quiet_device_ = device;
  quiet_answer_ = round.may_share() ? Answer::later : Answer::nothing;
  return quiet_answer_;
}

void Neighbours::give_up(std::uint64_t waited_ns) {
  const std::lock_guard lock(mutex_);
  quiet_until_ns_ = std::max(quiet_until_ns_, util::now_ns() + waited_ns);
  quiet_answer_ = Answer::nothing;
}

}  // namespace cupool::engine::ipc
