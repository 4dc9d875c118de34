// SPDX-License-Identifier: Apache-2.0
// What processes share: the same bytes, attributes and errors on both sides, whoever opens how
// often, from which device and in which threads; and what strangers are refused.
#include <unistd.h>

#include <vector>

#include "probe_ipc_scenes.h"

namespace ipc_probe {

using probe::say;

namespace {

constexpr uint64_t kSizes[] = {700, 4096, 1 << 20, (3 << 20) + 5};

}  // namespace

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

}  // namespace ipc_probe
