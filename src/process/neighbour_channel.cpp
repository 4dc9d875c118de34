// SPDX-License-Identifier: Apache-2.0
// One thread, asleep until a request comes. It never asks anybody itself, so two processes that
// ask each other do not wait for one another.
#include "process/neighbour_channel.h"

#include <poll.h>

#include <chrono>
#include <new>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "channel/directory.h"
#include "channel/messages.h"
#include "engine/ipc/neighbours.h"
#include "process/background.h"
#include "process/background_visits.h"
#include "process/live_answer.h"
#include "util/clock.h"

namespace cupool::process {
namespace {

using channel::NeighbourVerb;
using engine::ipc::Neighbours;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Least time between two releases, however many processes ask.
constexpr milliseconds kReleaseInterval{100};
// Least time between two readings of the figures, which take no memory from anyone. Short, because
// a request for memory that comes meanwhile waits as well.
constexpr milliseconds kReadInterval{20};
// Time for the message of a process that has connected; it is sent together with the connection.
constexpr std::uint64_t kMessageNs = 20'000'000;
// Least time between two sockets, for a program that closes each of them.
constexpr milliseconds kListenAgain{1000};

engine::Allocator* served = nullptr;
bool keeps_everything = false;

struct Asker {
  channel::Descriptor socket;
  channel::NeighbourRequest request;
  bool answered = false;
};

// To a request of another version, or one that this version does not know: the head alone says
// which version this is.
void name_version(Asker& asker) {
  const channel::NeighbourReply head;
  if (asker.request.magic != head.magic || !asker.socket.keeps()) return;
  channel::send_message(asker.socket.get(), &head, sizeof head, -1, 0);
}

// The requests that have come. Others' connections are closed unanswered.
std::vector<Asker> take_requests(const channel::Descriptor& listener) {
  std::vector<Asker> askers;
  const std::uint64_t deadline_ns = util::now_ns() + kMessageNs;
  for (bool more = true; more && askers.size() < Neighbours::kMostNeighbours;) {
    Asker asker;
    asker.socket = channel::accept_own(listener, &more);
    if (!asker.socket.valid()) continue;
    const channel::Transfer received = channel::receive_message(
        asker.socket.get(), &asker.request, sizeof asker.request, nullptr, deadline_ns);
    if (received != channel::Transfer::done) continue;
    if (!asker.request.valid()) {
      name_version(asker);
      continue;
    }
    askers.push_back(std::move(asker));
  }
  return askers;
}

std::uint64_t wanted_in_all(const std::vector<Asker>& askers, const channel::DeviceId& device) {
  std::uint64_t sum = 0;
  for (const Asker& asker : askers) {
    if (asker.answered || asker.request.device != device) continue;
    const std::uint64_t wanted = asker.request.wanted_bytes;
    if (wanted == 0 || wanted > UINT64_MAX - sum) return 0;
    sum += wanted;
  }
  return sum;
}

channel::NeighbourReply give(const channel::DeviceId& device, std::uint64_t wanted_bytes) {
  channel::NeighbourReply reply;
  if (keeps_everything) return reply;
  const BackgroundVisit visit;
  if (!visit.allowed() || cuda::shut_down()) return reply;
  const auto given = served->out_of_memory().give_to_neighbour(device, wanted_bytes);
  reply.shares_device = given.has_value() ? 1 : 0;
  reply.given_bytes = given.value_or(0);
  return reply;
}

void reply(Asker& asker, const void* message, std::size_t bytes) {
  if (!asker.socket.keeps()) return;
  channel::send_message(asker.socket.get(), message, bytes, -1, 0);
}

// One reading for all that ask for figures.
void tell_figures(std::vector<Asker>& askers) {
  std::optional<stats::LiveFigures> figures;
  for (Asker& asker : askers) {
    if (asker.request.verb != NeighbourVerb::figures) continue;
    asker.answered = true;
    if (!figures) figures = live_figures(*served);
    reply(asker, &*figures, sizeof *figures);
  }
}

// One release for all that ask for memory of one device. Returns the time until the next answer.
milliseconds answer(const channel::Descriptor& listener) {
  std::vector<Asker> askers = take_requests(listener);
  tell_figures(askers);
  milliseconds pause = askers.empty() ? kReleaseInterval : kReadInterval;
  for (const Asker& first : askers) {
    if (first.answered) continue;
    pause = kReleaseInterval;
    const channel::DeviceId device = first.request.device;
    const channel::NeighbourReply given = give(device, wanted_in_all(askers, device));
    for (Asker& asker : askers) {
      if (asker.answered || asker.request.device != device) continue;
      asker.answered = true;
      reply(asker, &given, sizeof given);
    }
  }
  return pause;
}

// Returns when the program has closed the socket.
void serve(channel::Descriptor& listener) {
  for (Clock::time_point next{}; listener.keeps();) {
    pollfd polled{listener.get(), POLLIN, 0};
    if (poll(&polled, 1, -1) <= 0) {
      std::this_thread::sleep_for(kReleaseInterval);
      continue;
    }
    std::this_thread::sleep_until(next);
    if (!listener.keeps()) return;
    milliseconds pause = kReleaseInterval;
    try {
      pause = answer(listener);
    } catch (const std::bad_alloc&) {  // the next request may find memory again
    }
    next = Clock::now() + pause;
  }
}

void* run(void*) {
  for (;; std::this_thread::sleep_for(kListenAgain)) {
    channel::Descriptor listener = channel::listen_for_neighbours();
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
