// SPDX-License-Identifier: Apache-2.0
// The kernel's list of unix sockets is the directory of neighbours: no file to leave behind, and
// none that another user could prepare. A name proves nothing, so each end asks the kernel whose
// the other one is.
#include "engine/ipc/neighbours.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "engine/ipc/wire.h"
#include "stats/pool_growth.h"
#include "util/clock.h"
#include "util/uncancelled.h"

namespace cupool::engine::ipc {
namespace {

constexpr std::size_t kLongestName = 64;
using NeighbourName = std::array<char, kLongestName>;

// Random number of this process's own socket; 0: none.
std::atomic<std::uint64_t> own_number{0};

NeighbourName neighbour_name_of(std::uint64_t number) {
  NeighbourName name{};
  std::snprintf(name.data(), name.size(), "cupool-neighbour-%u-%016" PRIx64,
                static_cast<unsigned>(geteuid()), number);
  return name;
}

// The name in a line of /proc/net/unix, if it is the socket of a neighbour that listens.
bool read_name(const char* line, NeighbourName* name) {
  constexpr unsigned long kListens = 0x10000;  // the kernel's __SO_ACCEPTCON
  unsigned long flags = 0;
  char path[kLongestName] = {};
  if (std::sscanf(line, "%*s %*s %*s %lx %*s %*s %*s @%63s", &flags, path) != 2) return false;
  if ((flags & kListens) == 0) return false;
  const NeighbourName prefix = neighbour_name_of(0);
  const std::size_t length = std::strlen(prefix.data()) - 16;
  if (std::strncmp(path, prefix.data(), length) != 0) return false;
  if (std::strcmp(path, neighbour_name_of(own_number.load(std::memory_order_relaxed)).data()) ==
      0) {
    return false;
  }
  std::memcpy(name->data(), path, sizeof path);
  return true;
}

// Calls `visit` with the name of each neighbour until it returns false.
template <typename Visit>
void visit_neighbours(std::uint64_t deadline_ns, const Visit& visit) {
  const Descriptor list(open("/proc/net/unix", O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> buffer;
  std::size_t filled = 0;
  while (list.valid() && util::now_ns() < deadline_ns) {
    const ssize_t got = read(list.get(), buffer.data() + filled, buffer.size() - 1 - filled);
    if (got <= 0) return;
    filled += static_cast<std::size_t>(got);
    buffer[filled] = '\0';
    char* line = buffer.data();
    while (char* end = std::strchr(line, '\n')) {
      *end = '\0';
      NeighbourName name;
      if (read_name(line, &name) && !visit(name.data())) return;
      line = end + 1;
    }
    filled = static_cast<std::size_t>(buffer.data() + filled - line);
    if (filled == buffer.size() - 1) filled = 0;  // no line is that long
    std::memmove(buffer.data(), line, filled);
  }
}

// The connections of one request, and what has come of them.
class Round {
 public:
  explicit Round(std::uint64_t deadline_ns) : deadline_ns_(deadline_ns) {}

  void send(const NeighbourRequest& request) {
    visit_neighbours(deadline_ns_, [&](const char* name) {
      Descriptor socket = connect_to(name, 0);
      Peer peer;
      if (socket.valid() && peer_of(socket.get(), &peer) && admits(geteuid(), peer.user) &&
          send_message(socket.get(), &request, sizeof request, -1, 0) == Transfer::done) {
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
            reply.magic == NeighbourReply{}.magic) {
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

Descriptor listen_for_neighbours() {
  std::uint64_t number = 0;
  if (!fill_random(&number, sizeof number) || number == 0) return Descriptor();
  own_number.store(number, std::memory_order_relaxed);
  return listen_at(neighbour_name_of(number).data());
}

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
