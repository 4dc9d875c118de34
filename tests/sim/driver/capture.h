// SPDX-License-Identifier: Apache-2.0
// Stream capture: which calls are refused while something captures, in which mode, and whether
// the refusal invalidates the capture (docs/measurements/2026-11-22-h200-driver-facts.txt).
#pragma once

#include <cuda.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "driver/graph.h"

namespace cupool::sim {

struct Context;
struct Event;
struct Stream;

struct Capture {
  unsigned long long id = 0;
  Context* context = nullptr;
  Stream* origin = nullptr;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  unsigned long long thread = 0;
  bool valid = true;
  Graph* graph = nullptr;
  bool graph_is_the_programs = false;
  std::set<Stream*> members;
};

class Captures {
 public:
  CUresult begin(Stream& stream, CUstreamCaptureMode mode, Graph* into,
                 std::vector<GraphNode*> after);
  CUresult end(Stream& stream, CUgraph* graph);
  /// Whether a capture that has not ended puts its nodes into this graph.
  bool into(const Graph& graph) const;

  /// A call that is potentially unsafe: refused by the thread's mode and the captures' modes, until
  /// the capture ends, though it is invalid already (measured with an H100).
  CUresult refuse_unsafe();
  /// A call about the whole context: refused whenever one of its streams captures, in any mode, or
  /// has joined a capture that began in another context.
  CUresult refuse_in(const Context& context);
  /// Work on the legacy stream: refused while a stream captures that it would wait for.
  CUresult refuse_legacy(const Stream& stream);
  /// Asking about the legacy stream: refused likewise, but harms nothing.
  bool legacy_is_entangled(const Stream& stream) const;
  /// A call that names this very stream and cannot be captured.
  CUresult refuse_on(Stream& stream);
  /// A call that names an event that was recorded inside a capture.
  CUresult refuse_captured(const Event& event);

  CUresult add(Stream& stream, CUgraphNodeType type, OpSpec spec);
  CUresult record(Stream& stream, Event& event);
  /// `handled` tells whether the wait belonged to a capture at all.
  CUresult wait(Stream& stream, Event& event, bool external, bool* handled);

  void forget(Stream& stream);
  void abandon(Context& context);

  unsigned long long invalidated() const { return invalidated_; }

  /// Those of them that the program's own calls had no part in (begin_program_call()), and how the
  /// latest came about.
  unsigned long long invalidated_by_others() const { return invalidated_by_others_; }
  const std::string& last_by_others() const { return last_by_others_; }

 private:
  void invalidate(Capture& capture);
  void blame(const Capture& capture);
  Capture* by_id(unsigned long long id);

  std::map<unsigned long long, std::unique_ptr<Capture>> active_;
  unsigned long long last_id_ = 0;
  unsigned long long invalidated_ = 0;
  unsigned long long invalidated_by_others_ = 0;
  std::string last_by_others_;
};

CUstreamCaptureMode exchange_capture_mode(CUstreamCaptureMode mode);

/// The program under test makes a call of `symbol` on this thread, until end_program_call(), which
/// says how many captures that very call has invalidated. Any other call meanwhile is a library's.
void begin_program_call(const char* symbol);
unsigned end_program_call();

}  // namespace cupool::sim
