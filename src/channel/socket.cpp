// SPDX-License-Identifier: Apache-2.0
// Unix sockets in the abstract namespace: they leave nothing in the file system and end with their
// process. SOCK_SEQPACKET preserves message boundaries.
#include "channel/socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <thread>

#include "util/clock.h"

namespace cupool::channel {
namespace {

using Name = std::array<char, 64>;

Name name_of(std::uint64_t number) {
  Name name{};
  std::snprintf(name.data(), name.size(), "cupool-ipc-%016" PRIx64, number);
  return name;
}

socklen_t address_of(const char* name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  // The first byte stays zero, for the abstract namespace.
  const int length =
      std::snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "%s", name);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                static_cast<std::size_t>(length));
}

Descriptor new_socket() {
  return Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// False: the deadline has passed.
bool wait_until_ready(int socket, short what, std::uint64_t deadline_ns) {
  for (;;) {
    const std::uint64_t now = util::now_ns();
    if (now >= deadline_ns) return false;
    pollfd polled{socket, what, 0};
    const int milliseconds = static_cast<int>((deadline_ns - now) / 1'000'000) + 1;
    if (poll(&polled, 1, milliseconds) > 0) return true;
  }
}

bool try_later(int error) {
  return error == EAGAIN || error == EWOULDBLOCK;
}

// A control message with room for one descriptor; its padding has room for another.
union Control {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

// False: there was more than one descriptor; all are closed.
bool take_descriptor(msghdr* message, Descriptor* file) {
  std::size_t count = 0;
  for (cmsghdr* part = CMSG_FIRSTHDR(message); part != nullptr; part = CMSG_NXTHDR(message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= part->cmsg_len; at += sizeof(int)) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(part) + at, sizeof received);
      if (++count == 1) {
        *file = Descriptor(received);
      } else {
        close(received);
      }
    }
  }
  if (count <= 1 && (message->msg_flags & MSG_CTRUNC) == 0) return true;
  file->reset();
  return false;
}

}  // namespace

Descriptor listen_at(std::uint64_t name) {
  return listen_at(name_of(name).data());
}

Descriptor connect_to(std::uint64_t name, std::uint64_t deadline_ns) {
  return connect_to(name_of(name).data(), deadline_ns);
}

Descriptor listen_at(const char* name) {
  constexpr int kBacklog = 64;
  Descriptor listener = new_socket();
  if (!listener.valid()) return listener;
  sockaddr_un address;
  const socklen_t length = address_of(name, &address);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(listener.get(), kBacklog) != 0) {
    const int error = errno;
    listener.reset();
    errno = error;
  }
  return listener;
}

Descriptor connect_to(const char* name, std::uint64_t deadline_ns) {
  sockaddr_un address;
  const socklen_t length = address_of(name, &address);
  Descriptor connection = new_socket();
  while (connection.valid() &&
         connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    const bool queue_full = try_later(errno) || errno == EINTR;
    if (!queue_full || util::now_ns() >= deadline_ns) {
      connection.reset();
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return connection;
}

Descriptor accept_own(const Descriptor& listener, bool* more) {
  const int file = accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  *more = file >= 0 || errno == EINTR || errno == ECONNABORTED;
  Descriptor socket(file);
  Peer peer;
  if (socket.valid() && (!peer_of(file, &peer) || !admits(geteuid(), peer.user))) socket.reset();
  return socket;
}

bool peer_of(int socket, Peer* peer) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0 ||
      length != sizeof credentials) {
    return false;
  }
  peer->process = credentials.pid;
  peer->user = credentials.uid;
  return true;
}

Descriptor watch_process(pid_t process) {
#ifdef SYS_pidfd_open
  return Descriptor(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
#else
  errno = ENOSYS;
  return Descriptor();
#endif
}

bool admits(uid_t own, uid_t peer) {
  return own == peer;
}

Transfer send_message(int socket, const void* message, std::size_t bytes, int file,
                      std::uint64_t deadline_ns) {
  iovec part{const_cast<void*>(message), bytes};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  Control control{};
  if (file >= 0) {
    header.msg_control = control.bytes;
    header.msg_controllen = sizeof control.bytes;
    cmsghdr* descriptor = CMSG_FIRSTHDR(&header);
    descriptor->cmsg_level = SOL_SOCKET;
    descriptor->cmsg_type = SCM_RIGHTS;
    descriptor->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(descriptor), &file, sizeof file);
  }
  for (;;) {
    if (sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return Transfer::done;
    if (errno == EINTR) continue;
    if (!try_later(errno) && errno != ENOBUFS) return Transfer::ended;
    if (deadline_ns == 0 || !wait_until_ready(socket, POLLOUT, deadline_ns)) return Transfer::late;
  }
}

Transfer receive_message(int socket, void* message, std::size_t bytes, Descriptor* file,
                         std::uint64_t deadline_ns) {
  bool was_reset = false;
  for (;;) {
    iovec part{message, bytes};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    Control control{};
    if (file != nullptr) {
      header.msg_control = control.bytes;
      header.msg_controllen = sizeof control.bytes;
    }
    const ssize_t got = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got >= 0) {
      const bool whole = (file == nullptr || take_descriptor(&header, file)) &&
                         static_cast<std::size_t>(got) == bytes &&
                         (header.msg_flags & MSG_TRUNC) == 0;
      return whole ? Transfer::done : Transfer::ended;
    }
    if (errno == EINTR) continue;
    if (errno == ECONNRESET && !was_reset) {
      // The other end left without reading everything, which is reported before its last message.
      was_reset = true;
      continue;
    }
    if (!try_later(errno)) return Transfer::ended;
    if (deadline_ns == 0 || !wait_until_ready(socket, POLLIN, deadline_ns)) return Transfer::late;
  }
}

// By system call: glibc has getrandom since 2.25 only.
bool fill_random(void* bytes, std::size_t count) {
  long got = 0;
  do {
    got = syscall(SYS_getrandom, bytes, count, 0);
  } while (got < 0 && errno == EINTR);
  return got == static_cast<long>(count);
}

bool has_ended(int socket) {
  char byte = 0;
  const ssize_t got = recv(socket, &byte, sizeof byte, MSG_DONTWAIT | MSG_PEEK);
  return got == 0 || (got < 0 && !try_later(errno) && errno != EINTR);
}

}  // namespace cupool::channel
