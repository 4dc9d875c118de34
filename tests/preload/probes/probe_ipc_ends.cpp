// SPDX-License-Identifier: Apache-2.0
// How sharing ends: memory that is freed while others have it open, contexts that are reset,
// processes that die or stop, and connections and descriptors that are not cupool's any more.
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "probe_ipc_scenes.h"

namespace ipc_probe {

using probe::say;

// Work of the importer that is pending when it closes is done before the exporter gets the memory.
void close_waits(const Scene&) {
  Peer a;
  Peer b;
  a.allocate(1, 3 << 20, 1);
  MUST(b.open(1, a.handle(1)).code);
  MUST(b.order(Verb::fill_async, 1, 3 << 20, 2).code);
  say("close", b.order(Verb::close, 1).code);
  say("wrong", a.wrong(1, 3 << 20, 2));
}

// The exporter frees what an importer has open. What ends the lease: close, kill (the importer), or
// kill-forked (the importer, of which a forked child lives on).
void lease(const std::string& end) {
  Peer a;
  auto b = std::make_unique<Peer>();
  constexpr uint64_t kBytes = 48 << 20;
  a.churn(50);
  const uint64_t before = a.free_bytes();
  a.allocate(1, kBytes, 1);
  MUST(b->open(1, a.handle(1)).code);
  MUST(a.order(Verb::release, 1).code);
  long wrong = 0;
  for (int slot = 2; slot < 12; ++slot) {
    a.allocate(slot, kBytes, 2);
    wrong += b->wrong(1, kBytes, 1);
  }
  for (int slot = 2; slot < 12; ++slot) MUST(a.order(Verb::release, slot).code);
  a.churn(50);
  say("wrong bytes of the importer", wrong);
  say("held for it", a.free_bytes() + kBytes <= before + (1 << 20));
  pid_t child = 0;
  if (end == "close") {
    say("close", b->order(Verb::close, 1).code);
  } else {
    if (end == "kill-forked") child = static_cast<pid_t>(b->order(Verb::fork_child).number);
    b->end(SIGKILL);
  }
  bool back = false;
  for (int i = 0; i < 100 && !back; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    a.churn(50);
    back = a.free_bytes() + (1 << 20) >= before;
  }
  say("given back", back);
  if (child != 0) kill(child, SIGKILL);
}

// The exporter dies; with `forked` a child of it lives on.
void exporter_dies(bool forked) {
  auto a = std::make_unique<Peer>();
  Peer b;
  a->allocate(1, 4096, 1);
  a->allocate(2, 4096, 2);
  const Handle first = a->handle(1);
  const Handle second = a->handle(2);
  MUST(b.open(1, first).code);
  const pid_t child = forked ? static_cast<pid_t>(a->order(Verb::fork_child).number) : 0;
  a->end(SIGKILL);
  const Answer answer = b.open(2, second);
  say("open", answer.code);
  say("at once", answer.number < 2000);
  say("wrong", b.wrong(1, 4096, 1));
  say("close", b.order(Verb::close, 1).code);
  say("close again", b.order(Verb::close, 1).code);
  if (child != 0) kill(child, SIGKILL);
}

// The exporter is stopped: no hang, and right again afterwards.
void exporter_stops(const Scene&) {
  Peer a;
  Peer b;
  a.churn(50);
  const uint64_t before = a.free_bytes();
  a.allocate(1, 40 << 20, 1);
  a.allocate(2, 40 << 20, 2);
  const Handle first = a.handle(1);
  const Handle second = a.handle(2);
  MUST(b.open(1, first).code);
  a.stop();
  const Answer answer = b.open(2, second);
  say("open", answer.code);
  say("in time", answer.number < 8000);
  say("close", b.order(Verb::close, 1).code);
  a.signal(SIGCONT);
  say("open", b.open(2, second).code);
  say("wrong", b.wrong(2, 40 << 20, 2));
  say("close", b.order(Verb::close, 2).code);
  MUST(a.order(Verb::release, 1).code);
  MUST(a.order(Verb::release, 2).code);
  bool back = false;
  for (int i = 0; i < 100 && !back; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    a.churn(50);
    back = a.free_bytes() + (1 << 20) >= before;
  }
  say("given back", back);
}

void resets(const Scene&) {
  Peer a;
  Peer b;
  a.allocate(1, 1 << 20, 1);
  const Handle handle = a.handle(1);
  MUST(b.open(1, handle).code);
  say("importer's reset", b.order(Verb::reset).code);
  say("open", b.open(1, handle).code);
  say("wrong", b.wrong(1, 1 << 20, 1));
  say("exporter's reset", a.order(Verb::reset).code);
  a.allocate(2, 1 << 20, 2);
  say("wrong", b.wrong(1, 1 << 20, 1));
  say("close", b.order(Verb::close, 1).code);
  MUST(b.open(2, a.handle(2)).code);
  say("wrong", b.wrong(2, 1 << 20, 2));
}

// Connections that say nothing, and ones that say nonsense, as many as fit.
void flood(const Scene&) {
  Peer a;
  Peer b;
  Peer c;
  a.allocate(1, 4096, 1);
  const Handle handle = a.handle(1);
  MUST(b.open(1, handle).code);
  uint64_t name = 0;
  std::memcpy(&name, handle.bytes + 16, sizeof name);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const int length = std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1,
                                   "cupool-ipc-%016" PRIx64, name);
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  std::vector<int> connections;
  long connected = 0;
  for (int i = 0; i < 900; ++i) {
    const int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (s < 0) break;
    connections.push_back(s);
    if (connect(s, reinterpret_cast<sockaddr*>(&address),
                static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length)) == 0) {
      ++connected;
    }
    if (i % 3 == 0) send(s, &i, sizeof i, MSG_NOSIGNAL);
  }
  say("connected", connected > 500);
  say("a lease outlives it", b.wrong(1, 4096, 1));
  say("another importer", c.open(1, handle).code);
  say("wrong", c.wrong(1, 4096, 1));
  a.allocate(2, 4096, 2);
  say("the first importer again", b.open(2, a.handle(2)).code);
  say("wrong", b.wrong(2, 4096, 2));
  for (const int s : connections) close(s);
}

// Either side closes what it does not know and opens files of its own, which get the numbers.
void closes(const Scene&) {
  Peer a, b, c;
  a.allocate(1, 4096, 1);
  const Handle handle = a.handle(1);
  MUST(b.open(1, handle).code);
  const auto look = [](Peer& peer) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const Answer answer = peer.order(Verb::check_files);
    say("busy", answer.code);
    say("broken files", static_cast<long>(answer.number));
  };
  MUST(a.order(Verb::close_files).code);
  say("a handle from before", c.open(1, handle).code);
  look(a);
  say("the importer's bytes wrong", b.wrong(1, 4096, 1));
  say("a handle from after", c.open(2, a.handle(1)).code);
  say("wrong", c.wrong(2, 4096, 1));
  look(a);
  MUST(c.order(Verb::close_files).code);
  a.allocate(3, 1 << 20, 3);
  say("opened after a close", c.open(3, a.handle(3)).code);
  say("wrong", c.wrong(3, 1 << 20, 3));
  say("close", c.order(Verb::close, 2).code);
  say("free", a.order(Verb::release, 3).code);
  look(c);
  look(a);
}

}  // namespace ipc_probe
