// SPDX-License-Identifier: Apache-2.0
// Contexts, streams and events: who owns what, and which earlier work a new operation waits for
// by CUDA's rules of implicit order.
#pragma once

#include <cuda.h>

#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "driver/engine.h"
#include "driver/legacy_heap.h"
#include "driver/op.h"

namespace cupool::sim {

struct Capture;
struct Device;
struct GraphNode;
struct GreenContext;

/// What a dependent launch comes behind: what the kernel before it in its stream came behind, and
/// the events of other streams that were waited for since. Measured: it overlaps that kernel across
/// events of the stream and of the context, a wait for its own, and allocations in its order. Of a
/// wait for an event of the context nothing is known: it counts for the other streams' work.
struct Overlap {
  bool possible = false;  ///< the stream's latest work is a kernel
  std::vector<OpRef> before;
  Clock clock;
};

struct Stream {
  enum class Kind { legacy, per_thread, blocking, non_blocking };

  Context* context = nullptr;
  Kind kind = Kind::blocking;
  unsigned long long id = 0;
  int priority = 0;
  unsigned timeline = 0;
  uint64_t number = 0;  ///< of the latest operation
  uint64_t begin = 0;   ///< what has a number up to this was another stream's
  OpRef last;           ///< the latest operation; kept when done, for its clock
  int polls = 0;
  Overlap overlap;  ///< of a dependent launch now

  GreenContext* green = nullptr;  ///< the green context that the stream belongs to, if any

  Capture* capture = nullptr;
  std::vector<GraphNode*> capture_tail;

  /// Whether the legacy stream and this one wait for each other.
  bool blocking() const { return kind == Kind::blocking || kind == Kind::per_thread; }
};

struct Event {
  Context* context = nullptr;
  unsigned flags = 0;
  OpRef record;             ///< null: never recorded, which counts as complete
  bool of_context = false;  ///< recorded by cuCtxRecordEvent last
  int polls = 0;

  unsigned long long capture_id = 0;  ///< recorded inside this capture last
  std::vector<GraphNode*> capture_nodes;
};

struct Context {
  Device* device = nullptr;
  bool primary = false;
  bool alive = false;
  unsigned flags = 0;
  unsigned uses = 1;  ///< cuCtxAttach adds one, cuCtxDetach takes one away
  unsigned api_version = 3020;
  unsigned long long id = 0;
  CUresult sticky = CUDA_SUCCESS;

  Stream legacy;
  std::map<unsigned long long, std::unique_ptr<Stream>> per_thread;  ///< by thread number
  std::unordered_map<Stream*, std::unique_ptr<Stream>> streams;
  std::unordered_map<Event*, std::unique_ptr<Event>> events;
  LegacyHeap heap;
  std::set<Context*> peers;
  std::map<CUlimit, size_t> limits;
  std::set<uintptr_t> graph_memory;  ///< chunks that executable graphs hold
  /// Memory of streams but the first (CUPOOL_SIM_STREAM_BYTES). The next stream takes over what a
  /// destroyed one leaves.
  std::vector<uintptr_t> stream_memory;

  // Work of destroyed streams: their end returns at once (CUDA Driver API, cuStreamDestroy), and
  // the context still waits for it (docs/measurements/2026-11-22-h200-driver-facts.txt).
  std::vector<OpRef> orphans;
  std::vector<OpRef> blocking_orphans;
  Clock orphan_clock;
  Clock blocking_orphan_clock;

  // cuCtxWaitEvent holds back later work of every kind, streams created afterwards included.
  std::vector<OpRef> barriers;
  Clock barrier_clock;

  CUcontext handle() { return reinterpret_cast<CUcontext>(this); }
};

/// Submits work to a stream that is not capturing, ordered after what CUDA says it is.
OpRef submit(Stream& stream, OpSpec spec, const std::vector<OpRef>& also_after = {});

/// The same for what is no operation of the stream: nothing comes behind it but what names it.
OpRef submit_aside(Stream& stream, OpSpec spec);

/// As submit(), for a kernel, which a dependent launch may overlap.
OpRef submit_kernel(Stream& stream, OpSpec spec);

/// The same for a kernel that may begin before the one before it has ended, and may end before it,
/// too. What comes next in the stream comes behind both.
OpRef submit_dependent(Stream& stream, OpSpec spec);

/// Submits an operation after all work of the context, that of its green contexts too
/// (cuCtxRecordEvent), or after all work of a green one alone.
OpRef submit_after_everything(Context& context, OpSpec spec);
OpRef submit_after_everything(GreenContext& green, OpSpec spec);

/// What a synchronisation of this stream waits for.
std::vector<OpRef> tails(Stream& stream);

/// What a synchronisation of the context waits for: all streams, destroyed ones included.
std::vector<OpRef> tails(Context& context);

/// How far the context's streams have come, destroyed ones included.
std::vector<Instant> latest(Context& context);

/// The clock of everything that is ordered before the next operation of this stream.
Clock clock_of(Stream& stream);

Stream& per_thread_stream(Context& context);
/// Whether the operation was submitted to this stream.
bool is_of(const Op& op, const Stream& stream);
/// Takes device memory for one more stream, if that needs some. False: the device is full.
bool take_stream_memory(Context& context);
Stream& create_stream(Context& context, unsigned flags, int priority);
void destroy_stream(Stream& stream);

/// Brings a context to life, or takes all that it owns away (destroy, reset). Pools and their
/// blocks are not the context's: they survive (measured).
void revive(Context& context);
void empty(Lock& lock, Context& context);

/// Numbers of the calling thread (never used again) and process.
unsigned long long this_thread();
int this_process();

}  // namespace cupool::sim
