// SPDX-License-Identifier: Apache-2.0
// Memory shared between processes (contract 8), scenario by scenario: starts processes that do as
// it orders (probe_ipc_peer.cpp), makes no CUDA call itself, and prints what they got. scenario=
// names one; a= and b= add one variable (NAME:VALUE) to the environment of the exporter or the
// importers.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "probe.h"
#include "probe_ipc.h"
#include "probe_ipc_process.h"

using ipc_probe::Answer;
using ipc_probe::Handle;
using ipc_probe::Order;
using ipc_probe::Peer;
using ipc_probe::Verb;

namespace {

struct Scene {
  std::string for_a;
  std::string for_b;
};

constexpr uint64_t kSizes[] = {700, 4096, 1 << 20, (3 << 20) + 5};

void say(const char* what, long value) {
  std::printf("%s %ld\n", what, value);
  std::fflush(stdout);
}

// Data is seen by both, in blocks of every kind.
void share(const Scene& scene) {
  Peer a(scene.for_a);
  Peer b(scene.for_b);
  int slot = 0;
  for (const uint64_t bytes : kSizes) {
    a.allocate(++slot, bytes, 17);
    const Handle handle = a.handle(slot);
    const Handle again = a.handle(slot);
    say("same handle", std::memcmp(&handle, &again, sizeof handle) == 0);
    say("open", b.open(slot, handle).code);
    say("importer sees wrong bytes", b.wrong(slot, bytes, 17));
    say("fill", b.order(Verb::fill, slot, bytes, 18).code);
    say("exporter sees wrong bytes", a.wrong(slot, bytes, 18));
    say("close", b.order(Verb::close, slot).code);
    say("free", a.order(Verb::release, slot).code);
  }
}

// Each call may fail; data that was had must be right, and nobody may hang or die.
void share_with_faults(const Scene& scene) {
  Peer a(scene.for_a);
  Peer b(scene.for_b);
  b.kernels = false;
  long wrong = 0;
  long served = 0;
  for (int slot = 1; slot <= 6; ++slot) {
    const uint64_t bytes = kSizes[slot % 4];
    if (a.order(Verb::allocate, slot, bytes).code != 0) continue;
    if (a.order(Verb::fill, slot, bytes, 20 + slot).code != 0) continue;
    const Answer got = a.order(Verb::get_handle, slot);
    Handle handle;
    std::memcpy(handle.bytes, got.handle, sizeof handle.bytes);
    if (got.code == 0 && b.open(slot, handle).code == 0) {
      ++served;
      const Answer seen = b.order(Verb::check, slot, bytes, 20 + slot);
      if (seen.code == 0) wrong += static_cast<long>(seen.number);
      b.order(Verb::close, slot);
    }
    a.order(Verb::release, slot);
  }
  say("wrong bytes", wrong);
  std::fprintf(stderr, "served %ld of 6\n", served);
}

void two_importers(const Scene&) {
  Peer a;
  Peer b;
  Peer c;
  a.allocate(1, 1 << 20, 1);
  const Handle handle = a.handle(1);
  say("open", b.open(1, handle).code);
  say("open", c.open(1, handle).code);
  say("fill", b.order(Verb::fill, 1, 1 << 20, 2).code);
  say("wrong", c.wrong(1, 1 << 20, 2));
  say("close", b.order(Verb::close, 1).code);
  say("wrong", c.wrong(1, 1 << 20, 2));
  say("fill", c.order(Verb::fill, 1, 1 << 20, 3).code);
  say("close", c.order(Verb::close, 1).code);
  say("wrong", a.wrong(1, 1 << 20, 3));
  say("free", a.order(Verb::release, 1).code);
}

void open_twice(const Scene&) {
  Peer a;
  Peer b;
  a.allocate(1, 4096, 1);
  const Handle handle = a.handle(1);
  const Answer first = b.open(1, handle);
  const Answer second = b.open(2, handle);
  say("open", first.code);
  say("open", second.code);
  say("same address", first.address == second.address);
  say("close", b.order(Verb::close, 1).code);
  say("wrong", b.wrong(2, 4096, 1));
  say("close", b.order(Verb::close, 2).code);
  say("close too often", b.order(Verb::close, 2).code);
  say("open again", b.open(3, handle).code);
  say("wrong", b.wrong(3, 4096, 1));
  say("close", b.order(Verb::close, 3).code);
}

// Calls that the driver refuses.
void errors(const Scene&) {
  Peer a;
  Peer b;
  a.allocate(1, 4096, 1);
  const Handle handle = a.handle(1);
  say("open in the process that exported", a.open(2, handle).code);
  say("open", b.open(1, handle).code);
  say("cudaFree of an import", b.order(Verb::release, 1).code);
  say("wrong", b.wrong(1, 4096, 1));
  say("close", b.order(Verb::close, 1).code);
  say("close of memory of its own", (b.allocate(5, 4096, 1), b.order(Verb::close, 5).code));
  const Handle none{};
  say("open of no handle", b.open(6, none).code);
  a.allocate(7, 1 << 20, 9);
  const Handle interior = a.handle(7, 4100);
  say("open of an interior pointer's handle", b.open(7, interior).code);
  say("wrong from its base", b.wrong(7, 1 << 20, 9));
  say("close", b.order(Verb::close, 7).code);
}

void attributes(const Scene&) {
  Peer a;
  Peer b;
  int slot = 0;
  for (const uint64_t bytes : kSizes) {
    a.allocate(++slot, bytes, 1);
    say("exporter's", static_cast<long>(a.order(Verb::attributes, slot, bytes, 1).number));
    MUST(b.open(slot, a.handle(slot)).code);
    say("importer's", static_cast<long>(b.order(Verb::attributes, slot, bytes, 0).number));
  }
}

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

// Handles that were not given out, and processes that may not have the memory.
void strangers(const Scene&) {
  Peer a;
  Peer b;
  a.allocate(1, 4096, 1);
  const Handle handle = a.handle(1);
  for (const size_t at : {size_t{16}, size_t{24}, size_t{32}, size_t{47}}) {
    Handle forged = handle;
    forged.bytes[at] ^= 1;
    say("open of a forged handle", b.open(1, forged).code);
  }
  say("open of the right one", b.open(1, handle).code);
  say("wrong", b.wrong(1, 4096, 1));
  if (geteuid() == 0) {
    Peer c;
    MUST(c.order(Verb::become, 0, 65534).code);
    say("another user", c.open(1, handle).code);
    Peer d;
    d.allocate(1, 4096, 1);
    MUST(d.order(Verb::become, 0, 65534).code);
    const Handle theirs = d.handle(1);
    say("of another user", b.open(9, theirs).code);
  } else {
    say("another user", 205);
    say("of another user", 205);
  }
  say("wrong", b.wrong(1, 4096, 1));
}

void plain_importer(const Scene&) {
  Peer a;
  Peer b("", false);
  a.allocate(1, 4096, 1);
  say("open", b.open(1, a.handle(1)).code != 0);
  say("wrong", a.wrong(1, 4096, 1));
}

void refused(const Scene& scene) {
  Peer a(scene.for_a);
  a.allocate(1, 4096, 1);
  say("handle", a.order(Verb::get_handle, 1).code);
  say("handle", a.order(Verb::get_handle, 1).code);
  say("wrong", a.wrong(1, 4096, 1));
  say("free", a.order(Verb::release, 1).code);
}

void captures(const Scene&) {
  Peer a;
  Peer b;
  a.allocate(1, 4096, 1);
  MUST(a.order(Verb::capture).code);
  const Handle handle = a.handle(1);
  say("exporter's capture", a.order(Verb::end_capture).code);
  b.allocate(8, 4096, 8);
  MUST(b.order(Verb::capture).code);
  say("open", b.open(1, handle).code);
  say("close", b.order(Verb::close, 1).code);
  say("open", b.open(2, handle).code);
  say("importer's capture", b.order(Verb::end_capture).code);
  say("wrong", b.wrong(2, 4096, 1));
  say("close", b.order(Verb::close, 2).code);
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

void many(const Scene&) {
  Peer a;
  Peer b;
  Peer c;
  constexpr int kBlocks = 200;
  std::vector<Handle> handles(kBlocks);
  long wrong = 0;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kBlocks; ++i) {
      a.allocate(i, 512 + 1000 * static_cast<uint64_t>(i), 1 + i % 100);
      handles[static_cast<size_t>(i)] = a.handle(i);
    }
    for (int i = 0; i < kBlocks; ++i) {
      for (Peer* importer : {&b, &c}) {
        MUST(importer->open(i, handles[static_cast<size_t>(i)]).code);
        wrong += importer->wrong(i, 512 + 1000 * static_cast<uint64_t>(i), 1 + i % 100);
      }
    }
    for (int i = 0; i < kBlocks; ++i) {
      MUST(b.order(Verb::close, i).code);
      if (i % 2 == 0) MUST(a.order(Verb::release, i).code);
      MUST(c.order(Verb::close, i).code);
      if (i % 2 != 0) MUST(a.order(Verb::release, i).code);
    }
  }
  say("wrong", wrong);
}

void two_devices(const Scene&) {
  for (const int exporters : {0, 1}) {
    Peer a;
    Peer b;
    MUST(a.order(Verb::set_device, 0, 0, exporters).code);
    MUST(b.order(Verb::set_device, 0, 0, 1 - exporters).code);
    a.allocate(1, 1 << 20, 4);
    say("open from the other device", b.open(1, a.handle(1)).code);
    say("wrong", b.wrong(1, 1 << 20, 4));
    say("fill", b.order(Verb::fill, 1, 1 << 20, 5).code);
    say("wrong", a.wrong(1, 1 << 20, 5));
    say("close", b.order(Verb::close, 1).code);
  }
}

void races(const Scene&) {
  Peer a;
  Peer b;
  a.allocate(1, 100000, 6);
  const Handle handle = a.handle(1);
  say("exports", static_cast<long>(a.order(Verb::race_export).number));
  say("opens", static_cast<long>(b.order(Verb::race_open, 1, 100000, 6, &handle).number));
  say("wrong", a.wrong(1, 100000, 6));
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

}  // namespace

int main(int argc, char** argv) {
  const std::string scenario = probe::argument(argc, argv, "scenario", "share");
  const Scene scene{probe::argument(argc, argv, "a", ""), probe::argument(argc, argv, "b", "")};
  char path[4096] = {};
  if (readlink("/proc/self/exe", path, sizeof path - 1) < 0) return 1;
  ipc_probe::self = path;
  const struct {
    const char* name;
    void (*play)(const Scene&);
  } scenarios[] = {{"share", share},
                   {"faults", share_with_faults},
                   {"two", two_importers},
                   {"twice", open_twice},
                   {"errors", errors},
                   {"attributes", attributes},
                   {"close-waits", close_waits},
                   {"lease-close", [](const Scene&) { lease("close"); }},
                   {"lease-kill", [](const Scene&) { lease("kill"); }},
                   {"lease-kill-forked", [](const Scene&) { lease("kill-forked"); }},
                   {"exporter-dies", [](const Scene&) { exporter_dies(false); }},
                   {"exporter-dies-forked", [](const Scene&) { exporter_dies(true); }},
                   {"exporter-stops", exporter_stops},
                   {"strangers", strangers},
                   {"plain-importer", plain_importer},
                   {"refused", refused},
                   {"captures", captures},
                   {"resets", resets},
                   {"many", many},
                   {"two-devices", two_devices},
                   {"races", races},
                   {"flood", flood},
                   {"closes", closes}};
  for (const auto& entry : scenarios) {
    if (scenario != entry.name) continue;
    entry.play(scene);
    say("done", 0);
    return 0;
  }
  return 2;
}
