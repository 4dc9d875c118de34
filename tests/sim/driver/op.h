// SPDX-License-Identifier: Apache-2.0
// An operation of the simulated device and the order between operations. The order is explicit,
// as predecessors (what must have executed before) and as a vector clock (what is known to be
// ordered before, whether executed or not), so that a judge can decide "ordered?" exactly.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace cupool::sim {

struct Context;
struct Op;
using OpRef = std::shared_ptr<Op>;

/// Progress by timeline: one for each stream. A later stream may go on where an ended one was.
using Clock = std::vector<uint64_t>;

inline void join(Clock& into, const Clock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    if (into[i] < from[i]) into[i] = from[i];
  }
}

/// A point on a timeline; timeline 0 means "ordered before everything".
struct Instant {
  unsigned timeline = 0;
  uint64_t number = 0;
};

inline bool covers(const Clock& clock, Instant at) {
  return at.timeline == 0 || (at.timeline < clock.size() && clock[at.timeline] >= at.number);
}

/// Memory that an operation reads or writes: device, managed or host addresses alike.
struct Access {
  uintptr_t base;
  size_t bytes;
  bool write;
};

/// What an operation is, before it has a place in the order.
struct OpSpec {
  const char* name = "";
  std::function<CUresult()> effect;  ///< runs under the world's lock; an error becomes sticky
  std::function<void()> host;        ///< runs without the lock on the service thread
  const void* host_code = nullptr;   ///< the program's function that `host` calls
  std::vector<Access> accesses;
  uint64_t duration_ns = 0;  ///< timed mode
};

struct Op {
  enum class State { pending, handed_to_host, done };

  uint64_t id = 0;
  Context* context = nullptr;
  OpSpec spec;
  State state = State::pending;
  std::vector<OpRef> before;  ///< only what had not executed when this was submitted
  Clock clock;
  Instant at;
  std::vector<std::atomic<uint32_t>*> pending_elsewhere;  ///< counters of other processes
  bool cancelled = false;                                 ///< done without having been run
  bool finish_known = false;                              ///< timed mode
  uint64_t finish_ns = 0;  ///< timed mode: when it will finish; otherwise when it did

  bool done() const { return state == State::done; }
};

}  // namespace cupool::sim
