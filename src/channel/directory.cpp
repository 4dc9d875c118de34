// SPDX-License-Identifier: Apache-2.0
// The kernel's list of unix sockets is the directory of neighbours: no file to leave behind, and
// none that another user could prepare. A name proves nothing, so each end asks the kernel whose
// the other one is.
#include "channel/directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

#include "util/clock.h"

namespace cupool::channel {
namespace {

constexpr std::size_t kLongestName = 64;
using ChannelName = std::array<char, kLongestName>;

// Random number of this process's own socket; 0: none.
std::atomic<std::uint64_t> own_number{0};

ChannelName channel_name(std::uint64_t number) {
  ChannelName name{};
  std::snprintf(name.data(), name.size(), "cupool-neighbour-%u-%016" PRIx64,
                static_cast<unsigned>(geteuid()), number);
  return name;
}

// The name in a line of /proc/net/unix, if it is the socket of a neighbour that listens.
bool read_name(const char* line, ChannelName* name) {
  constexpr unsigned long kListens = 0x10000;  // the kernel's __SO_ACCEPTCON
  unsigned long flags = 0;
  char path[kLongestName] = {};
  if (std::sscanf(line, "%*s %*s %*s %lx %*s %*s %*s @%63s", &flags, path) != 2) return false;
  if ((flags & kListens) == 0) return false;
  const ChannelName prefix = channel_name(0);
  const std::size_t length = std::strlen(prefix.data()) - 16;
  if (std::strncmp(path, prefix.data(), length) != 0) return false;
  if (std::strcmp(path, channel_name(own_number.load(std::memory_order_relaxed)).data()) == 0) {
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
      ChannelName name;
      if (read_name(line, &name) && !visit(name.data())) return;
      line = end + 1;
    }
    filled = static_cast<std::size_t>(buffer.data() + filled - line);
    if (filled == buffer.size() - 1) filled = 0;  // no line is that long
    std::memmove(buffer.data(), line, filled);
  }
}

}  // namespace

Descriptor listen_for_neighbours() {
  std::uint64_t number = 0;
  if (!fill_random(&number, sizeof number) || number == 0) return Descriptor();
  own_number.store(number, std::memory_order_relaxed);
  return listen_at(channel_name(number).data());
}

void connect_to_neighbours(std::uint64_t deadline_ns,
                           const std::function<bool(Descriptor socket, const Peer& peer)>& visit) {
  visit_neighbours(deadline_ns, [&](const char* name) {
    Descriptor socket = connect_to(name, 0);
    Peer peer;
    if (!socket.valid() || !peer_of(socket.get(), &peer) || !admits(geteuid(), peer.user)) {
      return true;
    }
    return visit(std::move(socket), peer);
  });
}

}  // namespace cupool::channel
