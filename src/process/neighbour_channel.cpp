// SPDX-License-Identifier: Apache-2.0
// One thread, asleep until a request comes. It never asks anybody itself, so two processes that
// ask each other do not wait for one another.
#include "process/neighbour_channel.h"

#include <poll.h>

#include <chrono>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "engine/ipc/neighbours.h"
#include "process/background.h"
#include "process/background_visits.h"
#include "util/clock.h"

namespace cupool::process {
namespace {

namespace ipc = engine::ipc;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Least time between two releases, however many processes ask.
constexpr milliseconds kReleaseInterval{100};
// Time for the message of a process that has connected; it is sent together with the connection.
constexpr std::uint64_t kMessageNs = 20'000'000;
// Least time between two sockets, for a program that closes each of them.
constexpr milliseconds kListenAgain{1000};

engine::Allocator* served = nullptr;
bool keeps_everything = false;

struct Asker {
  ipc::Descriptor socket;
  ipc::NeighbourRequest request;
  bool answered = false;
};

// The requests that have come. Others' connections are closed unanswered.
std::vector<Asker> take_requests(const ipc::Descriptor& listener) {
  std::vector<Asker> askers;
  const std::uint64_t deadline_ns = util::now_ns() + kMessageNs;
  for (bool more = true; more && askers.size() < ipc::Neighbours::kMostNeighbours;) {
    Asker asker;
    asker.socket = ipc::accept_own(listener, &more);
    if (!asker.socket.valid()) continue;
    const ipc::Transfer received = ipc::receive_message(asker.socket.get(), &asker.request,
                                                        sizeof asker.request, nullptr, deadline_ns);
    if (received != ipc::Transfer::done || !asker.request.valid()) continue;
    askers.push_back(std::move(asker));
  }
  return askers;
}

std::uint64_t wanted_in_all(const std::vector<Asker>& askers, const ipc::DeviceId& device) {
  std::uint64_t sum = 0;
  for (const Asker& asker : askers) {
    if (asker.request.device != device) continue;
    const std::uint64_t wanted = asker.request.wanted_bytes;
    if (wanted == 0 || wanted > UINT64_MAX - sum) return 0;
    sum += wanted;
  }
  return sum;
}

ipc::NeighbourReply give(const ipc::DeviceId& device, std::uint64_t wanted_bytes) {
  ipc::NeighbourReply reply;
  if (keeps_everything) return reply;
  const BackgroundVisit visit;
  if (!visit.allowed() || cuda::shut_down()) return reply;
  const auto given = served->out_of_memory().give_to_neighbour(device, wanted_bytes);
  reply.shares_device = given.has_value() ? 1 : 0;
  reply.given_bytes = given.value_or(0);
  return reply;
}

// One release for all that ask for memory of one device.
void answer(const ipc::Descriptor& listener) {
  std::vector<Asker> askers = take_requests(listener);
  for (const Asker& first : askers) {
    if (first.answered) continue;
    const ipc::DeviceId device = first.request.device;
    const ipc::NeighbourReply reply = give(device, wanted_in_all(askers, device));
    for (Asker& asker : askers) {
      if (asker.request.device != device) continue;
      asker.answered = true;
      if (!asker.socket.keeps()) continue;
      ipc::send_message(asker.socket.get(), &reply, sizeof reply, -1, 0);
    }
  }
}

// Returns when the program has closed the socket.
void serve(ipc::Descriptor& listener) {
  for (Clock::time_point next{}; listener.keeps();) {
    pollfd polled{listener.get(), POLLIN, 0};
    if (poll(&polled, 1, -1) <= 0) {
      std::this_thread::sleep_for(kReleaseInterval);
      continue;
    }
    std::this_thread::sleep_until(next);
    if (!listener.keeps()) return;
    try {
      answer(listener);
    } catch (const std::bad_alloc&) {  // the next request may find memory again
    }
    next = Clock::now() + kReleaseInterval;
  }
}

void* run(void*) {
  for (;; std::this_thread::sleep_for(kListenAgain)) {
    ipc::Descriptor listener = ipc::listen_for_neighbours();
    serve(listener);
  }
}

}  // namespace

bool start_neighbour_channel(engine::Allocator& allocator, bool keeps_all) {
  served = &allocator;
  keeps_everything = keeps_all;
  return start_background("cupool-channel", run);
}

}  // namespace cupool::process
