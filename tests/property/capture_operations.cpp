// SPDX-License-Identifier: Apache-2.0
// Captures and graphs. Calls that the real driver would refuse during a capture are mostly omitted:
// only a capture that is valid to its end can show harm done by cupool (contract 9, I3).
#include <algorithm>

#include "machine.h"

namespace cupool::property {

Capture* Machine::capture_of(Slots& slots, const StreamRef& where) {
  for (Capture& capture : slots.captures) {
    if (!capture.active) continue;
    for (const StreamRef& member : capture.members) {
      if (member.number == where.number) return &capture;
    }
  }
  return nullptr;
}

bool Machine::captures_in(int context) {
  for (const Slots& slots : slots_) {
    for (const Capture& capture : slots.captures) {
      if (!capture.active) continue;
      for (const StreamRef& member : capture.members) {
        if (member.context == context) return true;
      }
    }
  }
  return false;
}

// cuda.h, cuThreadExchangeStreamCaptureMode. In concurrent programs, no capture is in global mode.
bool Machine::unsafe_allowed(unsigned thread) {
  if (modes_[thread] == CU_STREAM_CAPTURE_MODE_RELAXED) return true;
  const Slots& slots = slots_[concurrent_ ? thread : 0];
  for (const Capture& capture : slots.captures) {
    if (!capture.active) continue;
    if (capture.thread == thread && capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED) return false;
    if (modes_[thread] == CU_STREAM_CAPTURE_MODE_GLOBAL &&
        capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL) {
      return false;
    }
  }
  return true;
}

// In concurrent programs, only non-blocking streams capture.
bool Machine::legacy_allowed(int context) {
  if (concurrent_) return true;
  for (const Capture& capture : slots_[0].captures) {
    if (!capture.active) continue;
    for (const StreamRef& member : capture.members) {
      if (member.context == context && !member.non_blocking) return false;
    }
  }
  return true;
}

void Machine::capture_begin(const Operation& op) {
  Slots& slots = slots_of(op);
  Capture& capture = slots.captures[op.a % kGraphs];
  const bool is_default = op.kind == Kind::capture_default;
  const StreamRef where = is_default ? stream(op, 1, static_cast<int>(op.b % kContexts))
                                     : stream(op, op.b, slots.streams[op.b % kStreams].context);
  if (capture.active || where.none() || where.legacy || syncing_thread_ >= 0) return;
  if (concurrent_ && !where.non_blocking) return;
  if (capture_of(slots, where) != nullptr || !enter(where.context)) return;
  auto mode = static_cast<CUstreamCaptureMode>(op.c % 3);
  if (concurrent_ && mode == CU_STREAM_CAPTURE_MODE_GLOBAL) {
    mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  }
  Capture begun;
  if (op.kind == Kind::capture_into) {
    if (!capture_into(op, where, mode, &begun)) return;
  } else if (!expect(cuStreamBeginCapture(where.handle, mode), "cuStreamBeginCapture")) {
    return;
  }
  capture = std::move(begun);
  capture.active = true;
  capture.mode = mode;
  capture.thread = op.thread;
  capture.members.push_back(where);
}

// Adds to the graph in the slot, if it belongs to the same context, or to a new one. Existing nodes
// of the graph count as the capture's.
bool Machine::capture_into(const Operation& op, const StreamRef& where, CUstreamCaptureMode mode,
                           Capture* capture) {
  const Graph& graph = slots_of(op).graphs[op.a % kGraphs];
  if (graph.graph != nullptr) {
    if (graph.made_by.members.front().context != where.context) return false;
    *capture = graph.made_by;
    capture->members.clear();
    capture->harmed = false;
    capture->into = graph.graph;
  } else if (!expect(cuGraphCreate(&capture->into, 0), "cuGraphCreate")) {
    return false;
  }
  std::size_t count = 0;
  cuGraphGetNodes(capture->into, nullptr, &count);
  std::vector<CUgraphNode> nodes(count);
  if (count != 0) cuGraphGetNodes(capture->into, nodes.data(), &count);
  count = std::min<std::size_t>(count, op.size);
  const bool begun = expect(
      cuStreamBeginCaptureToGraph(where.handle, capture->into, nodes.data(), nullptr, count, mode),
      "cuStreamBeginCaptureToGraph");
  if (!begun && graph.graph == nullptr) cuGraphDestroy(capture->into);
  return begun;
}

// The capture ended without a graph; the state of its target graph is unknown.
void Machine::lose_capture(Slots& slots, unsigned index) {
  const CUgraph into = slots.captures[index].into;
  slots.captures[index] = Capture{};
  if (into == nullptr) return;
  if (slots.graphs[index].graph == into) {
    graph_destroy(slots.graphs[index]);
  } else {
    cuGraphDestroy(into);
  }
}

// Another stream joins by an event.
void Machine::capture_fork(const Operation& op) {
  Slots& slots = slots_of(op);
  Capture& capture = slots.captures[op.a % kGraphs];
  if (!capture.active || capture.thread != op.thread) return;
  const StreamRef origin = capture.members.front();
  const StreamRef joining = stream(op, op.b, origin.context);
  if (joining.none() || joining.legacy || capture_of(slots, joining) != nullptr) return;
  if ((concurrent_ && !joining.non_blocking) || !enter(origin.context)) return;
  CUevent fork = nullptr;
  if (!expect(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING), "cuEventCreate")) return;
  if (expect(cuEventRecord(fork, origin.handle), "cuEventRecord") &&
      expect(cuStreamWaitEvent(joining.handle, fork, 0), "cuStreamWaitEvent")) {
    capture.members.push_back(joining);
  }
  cuEventDestroy(fork);
}

// The same for a stream of another context, by whose work the graph then has nodes there.
void Machine::capture_join(const Operation& op) {
  Slots& slots = slots_of(op);
  Capture& capture = slots.captures[op.a % kGraphs];
  const StreamRef joining = slots.streams[op.b % kStreams];
  if (!capture.active || capture.thread != op.thread || joining.none() || concurrent_) return;
  const StreamRef origin = capture.members.front();
  if (joining.context == origin.context || capture_of(slots, joining) != nullptr) return;
  CUevent fork = nullptr;
  if (!enter(origin.context) ||
      !expect(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING), "cuEventCreate")) {
    return;
  }
  if (expect(cuEventRecord(fork, origin.handle), "cuEventRecord") && enter(joining.context) &&
      expect(cuStreamWaitEvent(joining.handle, fork, 0), "cuStreamWaitEvent")) {
    capture.members.push_back(joining);
    capture.members.back().thread = thread_numbers_[op.thread];
  }
  cuEventDestroy(fork);
}

void Machine::capture_end(const Operation& op) {
  Slots& slots = slots_of(op);
  Capture& capture = slots.captures[op.a % kGraphs];
  if (!capture.active || capture.thread != op.thread) return;
  if (!enter(capture.members.front().context)) return;
  end_capture(slots, op.a % kGraphs, op.c == 0);
}

// On the thread that began it. `join`: joins forked streams first, as required.
void Machine::end_capture(Slots& slots, unsigned index, bool join) {
  Capture capture = slots.captures[index];
  const StreamRef origin = capture.members.front();
  for (std::size_t i = 1; join && i < capture.members.size(); ++i) {
    CUevent back = nullptr;
    if (!enter(capture.members[i].context)) continue;
    if (!expect(cuEventCreate(&back, CU_EVENT_DISABLE_TIMING), "cuEventCreate")) continue;
    expect(cuEventRecord(back, capture.members[i].handle), "cuEventRecord");
    enter(origin.context);
    expect(cuStreamWaitEvent(origin.handle, back, 0), "cuStreamWaitEvent");
    cuEventDestroy(back);
  }
  const bool whole = join && !capture.harmed && !(concurrent_ && refused_);
  CUgraph graph = nullptr;
  const CUresult result = cuStreamEndCapture(origin.handle, &graph);
  if (result != CUDA_SUCCESS) {
    if (is_sticky(result, "cuStreamEndCapture")) return;
    if (whole) fail("a capture that nothing harmed could not be ended (contract 9)");
    return lose_capture(slots, index);
  }
  slots.captures[index] = Capture{};
  Graph& slot = slots.graphs[index];
  if (capture.into != nullptr && graph != capture.into) {
    return fail("a capture into a graph ended with another one (contract 9)");
  }
  if (slot.graph == graph) slot.graph = nullptr;
  graph_destroy(slot);
  CUgraphExec exec = nullptr;
  const bool usable =
      unsafe_allowed(capture.thread) && cuGraphInstantiate(&exec, graph, 0) == CUDA_SUCCESS;
  if (!usable) {
    cuGraphDestroy(graph);
    return;
  }
  slot.graph = graph;
  slot.exec = exec;
  slot.made_by = std::move(capture);
}

// Only while all blocks and streams that it uses are unchanged.
void Machine::graph_launch(const Operation& op) {
  Slots& slots = slots_of(op);
  Graph& graph = slots.graphs[op.a % kGraphs];
  if (graph.exec == nullptr) return;
  const int context = graph.made_by.members.front().context;
  for (const StreamRef& member : graph.made_by.members) {
    if (member.context != context) return;  // nobody here follows what such a graph uses where
  }
  const StreamRef where = stream(op, op.b, context);
  if (where.none() || capture_of(slots, where) != nullptr || !enter(context)) return;
  if (where.legacy && !legacy_allowed(context)) return;
  for (const auto& used : graph.made_by.blocks) {
    const Block& block = slots.blocks[used.first];
    if (block.address == 0 || block.owner != used.second) return;
  }
  for (const auto& used : graph.made_by.buffers) {
    if (slots.buffers[used.first].host != used.second) return;
  }
  for (const auto& used : graph.made_by.blocks) {
    if (!use(slots, used.first, where)) return;
  }
  for (const auto& used : graph.made_by.blocks) slots.blocks[used.first].racy = true;
  for (const auto& used : graph.made_by.buffers) use_buffer(slots, used.first, where);
  expect(cuGraphLaunch(graph.exec, where.handle), "cuGraphLaunch");
}

// Not while a capture adds to it.
void Machine::graph_destroy(const Operation& op) {
  Slots& slots = slots_of(op);
  const Capture& capture = slots.captures[op.a % kGraphs];
  Graph& graph = slots.graphs[op.a % kGraphs];
  if (capture.into == nullptr || capture.into != graph.graph) graph_destroy(graph);
}

void Machine::graph_destroy(Graph& graph) {
  if (graph.exec != nullptr) cuGraphExecDestroy(graph.exec);
  if (graph.graph != nullptr) cuGraphDestroy(graph.graph);
  graph = Graph{};
}

void Machine::thread_mode(const Operation& op) {
  auto mode = static_cast<CUstreamCaptureMode>(op.a % 3);
  modes_[op.thread] = mode;
  expect(cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode", kNoContext);
}

}  // namespace cupool::property
