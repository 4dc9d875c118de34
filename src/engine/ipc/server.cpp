// SPDX-License-Identifier: Apache-2.0
// One poll loop over the listening socket and the importers' connections. Each importing process
// has one connection for all of its leases. The end of the connection, for any reason, ends them.
#include "engine/ipc/server.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <list>
#include <map>
#include <new>
#include <thread>
#include <vector>

#include "channel/socket.h"
#include "engine/ipc/exports.h"
#include "engine/ipc/wire.h"
#include "util/clock.h"
#include "util/log.h"

namespace cupool::engine::ipc {
namespace {

using namespace channel;

// Limits the descriptors that a flood of connections can take from the program.
constexpr std::size_t kMostConnections = 512;

// A process closes its sockets before its GPU work is stopped, and the driver does not say when
// that is done. So a lease that was not closed ends with the process itself. For a process that
// lives on (exec), the wait is limited to this time.
constexpr std::uint64_t kLongestDepartureNs = 10'000'000'000;

struct Connection {
  Descriptor socket;
  pid_t process = 0;
  Descriptor departure;             ///< after the socket's end: readable when the process ends
  std::uint64_t gone_at_ns = 0;     ///< after the socket's end: time limit for the process's end
  std::uint64_t mute_until_ns = 0;  ///< 0: a valid request has come
  std::map<std::uint64_t, std::uint64_t> leases;
};

class Server {
 public:
  Server(IpcExports& exports, Descriptor listener)
      : exports_(exports), listener_(std::move(listener)) {
    rlimit files{};
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur / 4 < most_connections_) {
      most_connections_ = std::max<std::size_t>(1, files.rlim_cur / 4);
    }
  }

  void run() {
    for (;;) {
      try {
        give_up_lost();
        if (!listener_.valid() && connections_.empty()) return;
        step();
      } catch (const std::bad_alloc&) {  // the next step may find memory again
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
    }
  }

 private:
  void step();
  void give_up_lost();
  void accept_all();
  void refuse(const Descriptor& socket, Status why) const;
  bool make_room();
  bool serve(Connection& connection);
  void open(Connection& connection, const Request& request);
  void close(Connection& connection, const Request& request);
  void hang_up(std::list<Connection>::iterator which);
  void drop(std::list<Connection>::iterator which);

  IpcExports& exports_;
  Descriptor listener_;
  std::list<Connection> connections_;  ///< oldest first
  std::size_t most_connections_ = kMostConnections;
  std::uint64_t accept_again_ns_ = 0;  ///< after the process ran out of descriptors
};

// The program may close files that it did not open, and reuse their numbers.
void Server::give_up_lost() {
  listener_.keeps();
  for (auto which = connections_.begin(); which != connections_.end();) {
    const auto connection = which++;
    if (connection->gone_at_ns != 0) {
      connection->departure.keeps();
    } else if (!connection->socket.keeps()) {
      hang_up(connection);
    }
  }
}

void Server::step() {
  const std::uint64_t now = util::now_ns();
  const bool accepting = now >= accept_again_ns_;
  std::uint64_t next = accepting ? UINT64_MAX : accept_again_ns_;
  std::vector<pollfd> polled;
  polled.push_back({accepting ? listener_.get() : -1, POLLIN, 0});
  for (const Connection& connection : connections_) {
    const bool leaving = connection.gone_at_ns != 0;
    polled.push_back({(leaving ? connection.departure : connection.socket).get(), POLLIN, 0});
    if (leaving) next = std::min(next, connection.gone_at_ns);
    if (connection.mute_until_ns != 0) next = std::min(next, connection.mute_until_ns);
  }
  int milliseconds = -1;
  if (next != UINT64_MAX) {
    milliseconds = next <= now ? 0 : static_cast<int>((next - now) / 1'000'000) + 1;
  }
  if (poll(polled.data(), polled.size(), milliseconds) < 0) return;
  std::size_t index = 1;
  const std::uint64_t after = util::now_ns();
  for (auto which = connections_.begin(); which != connections_.end();) {
    const auto connection = which++;
    const short events = polled[index++].revents;
    const bool heard = events != 0;
    if (connection->gone_at_ns != 0) {
      const bool ended = heard && connection->departure.keeps();
      if (ended || after >= connection->gone_at_ns) drop(connection);
    } else if (heard) {
      if (!connection->socket.keeps() || !serve(*connection)) hang_up(connection);
    } else if (connection->mute_until_ns != 0 && after >= connection->mute_until_ns) {
      drop(connection);
    }
  }
  if (polled[0].revents != 0 && listener_.keeps()) accept_all();
}

void Server::accept_all() {
  for (;;) {
    const int file = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (file < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        accept_again_ns_ = util::now_ns() + 100'000'000;
      }
      return;
    }
    Descriptor socket(file);
    if (!socket.valid()) return;
    Peer peer;
    if (!peer_of(socket.get(), &peer)) continue;
    if (!admits(geteuid(), peer.user)) {
      CUPOOL_WARN_ONCE(
          "refused to share GPU memory with a process of user %u, since this process runs as user "
          "%u. Run both as the same user",
          static_cast<unsigned>(peer.user), static_cast<unsigned>(geteuid()));
      refuse(socket, Status::other_user);
      continue;
    }
    if (connections_.size() >= most_connections_ && !make_room()) {
      refuse(socket, Status::busy);
      continue;
    }
    connections_.emplace_back();
    connections_.back().socket = std::move(socket);
    connections_.back().process = peer.process;
    connections_.back().mute_until_ns = util::now_ns() + kPatienceNs;
  }
}

void Server::refuse(const Descriptor& socket, Status why) const {
  Reply reply;
  reply.status = why;
  send_message(socket.get(), &reply, sizeof reply, -1, 0);
}

// Closes a connection without a lease, which its importer can make again when needed.
bool Server::make_room() {
  for (auto which = connections_.begin(); which != connections_.end(); ++which) {
    if (!which->leases.empty()) continue;
    drop(which);
    return true;
  }
  return false;
}

// False: the connection has ended, or its data is not a request.
bool Server::serve(Connection& connection) {
  for (;;) {
    Request request;
    switch (receive_message(connection.socket.get(), &request, sizeof request, nullptr, 0)) {
      case Transfer::late:
        return true;
      case Transfer::ended:
        return false;
      case Transfer::done:
        break;
    }
    if (request.magic != kMagic) return false;
    connection.mute_until_ns = 0;
    if (request.version != kVersion) {
      Reply reply;
      reply.status = Status::other_version;
      reply.sequence = request.sequence;
      send_message(connection.socket.get(), &reply, sizeof reply, -1, 0);
    } else if (request.verb == Verb::open) {
      open(connection, request);
    } else if (request.verb == Verb::close) {
      close(connection, request);
    } else {
      return false;
    }
  }
}

void Server::open(Connection& connection, const Request& request) {
  Reply reply;
  SharedMemory memory;
  std::uint64_t& leases = connection.leases[request.block];
  reply.sequence = request.sequence;
  reply.status = exports_.grant(request.block, request.secret, &memory, &reply.requested);
  const bool granted = reply.status == Status::granted;
  if (granted) {
    reply.pool = memory.pool;
    reply.pointer = memory.pointer;
    ++leases;
  }
  // An importer that does not read its replies gets no lease. Its other leases stay.
  const Transfer sent = send_message(connection.socket.get(), &reply, sizeof reply,
                                     granted ? memory.pool_file.number() : -1, 0);
  if (granted && sent != Transfer::done) {
    --leases;
    exports_.end_leases(request.block, 1);
  }
  if (leases == 0) connection.leases.erase(request.block);
}

void Server::close(Connection& connection, const Request& request) {
  const auto lease = connection.leases.find(request.block);
  if (lease == connection.leases.end()) return;
  if (--lease->second == 0) connection.leases.erase(lease);
  exports_.end_leases(request.block, 1);
}

// The importer has ended, or is about to end.
void Server::hang_up(std::list<Connection>::iterator which) {
  if (which->leases.empty()) return drop(which);
  which->socket.reset();
  which->departure = watch_process(which->process);
  if (!which->departure.valid() && errno == ESRCH) return drop(which);
  which->gone_at_ns = util::now_ns() + kLongestDepartureNs;
}

void Server::drop(std::list<Connection>::iterator which) {
  for (const auto& lease : which->leases) exports_.end_leases(lease.first, lease.second);
  connections_.erase(which);
}

void* run_server(void* server) {
  pthread_setname_np(pthread_self(), "cupool-ipc");
  static_cast<Server*>(server)->run();
  delete static_cast<Server*>(server);
  return nullptr;
}

}  // namespace

bool start_server(IpcExports& exports, std::uint64_t name, KnownFile* socket) {
  Descriptor listener = listen_at(name);
  if (!listener.valid()) return false;
  *socket = listener.known();
  auto* server = new (std::nothrow) Server(exports, std::move(listener));
  if (server == nullptr) return false;
  // Signals of the program are for the program's threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread{};
  const int error = pthread_create(&thread, nullptr, run_server, server);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    delete server;
    errno = error;
    return false;
  }
  pthread_detach(thread);
  return true;
}

}  // namespace cupool::engine::ipc
