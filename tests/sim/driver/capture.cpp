// SPDX-License-Identifier: Apache-2.0
// The rules of capture, as cuda.h states them (cuThreadExchangeStreamCaptureMode) and as they were
// measured (docs/measurements/2026-11-22-h200-driver-facts.txt).
#include "driver/capture.h"

#include <algorithm>
#include <cstring>

#include "driver/context.h"
#include "driver/deadlock.h"
#include "driver/world.h"

namespace cupool::sim {

namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

struct ProgramCall {
  const char* symbol = nullptr;
  unsigned invalidated = 0;
};
thread_local ProgramCall program_call;

bool reaches(const std::vector<GraphNode*>& from, const GraphNode* wanted,
             std::set<const GraphNode*>& seen) {
  for (const GraphNode* node : from) {
    if (node == wanted) return true;
    if (seen.insert(node).second && reaches(node->after, wanted, seen)) return true;
  }
  return false;
}

// By the stream that the capture began on, or by one that has joined it since (seen with two H200).
bool takes_part(const Context& context, const Capture& capture) {
  return std::any_of(capture.members.begin(), capture.members.end(),
                     [&](const Stream* member) { return member->context == &context; });
}

}  // namespace

CUstreamCaptureMode exchange_capture_mode(CUstreamCaptureMode mode) {
  const CUstreamCaptureMode previous = thread_mode;
  thread_mode = mode;
  return previous;
}

void begin_program_call(const char* symbol) {
  program_call = ProgramCall{symbol, 0};
  note_program_call(symbol);
}

unsigned end_program_call() {
  const unsigned invalidated = program_call.invalidated;
  program_call = ProgramCall{};
  note_program_call(nullptr);
  return invalidated;
}

CUresult Captures::begin(Stream& stream, CUstreamCaptureMode mode, Graph* into,
                         std::vector<GraphNode*> after) {
  if (stream.kind == Stream::Kind::legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream.capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_unique<Capture>();
  capture->id = ++last_id_;
  capture->context = stream.context;
  capture->origin = &stream;
  capture->mode = mode;
  capture->thread = this_thread();
  capture->graph_is_the_programs = into != nullptr;
  capture->graph = into != nullptr ? into : &world().graphs.create(*stream.context);
  capture->members.insert(&stream);
  stream.capture = capture.get();
  stream.capture_tail = std::move(after);
  active_.emplace(capture->id, std::move(capture));
  return CUDA_SUCCESS;
}

CUresult Captures::end(Stream& stream, CUgraph* graph) {
  Capture* const capture = stream.capture;
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != &stream) {
    invalidate(*capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != this_thread()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  CUresult result = capture->valid ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  for (Stream* member : capture->members) {
    if (result != CUDA_SUCCESS) break;
    for (const GraphNode* node : member->capture_tail) {
      std::set<const GraphNode*> seen;
      if (!reaches(stream.capture_tail, node, seen)) result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
  }
  for (Stream* member : capture->members) {
    member->capture = nullptr;
    member->capture_tail.clear();
  }
  Graph* const made = capture->graph;
  const bool drop = result != CUDA_SUCCESS && !capture->graph_is_the_programs;
  active_.erase(capture->id);
  if (drop) world().graphs.destroy(made);
  if (graph != nullptr) *graph = result == CUDA_SUCCESS ? made->handle() : nullptr;
  return result;
}

bool Captures::into(const Graph& graph) const {
  for (const auto& entry : active_) {
    if (entry.second->graph == &graph) return true;
  }
  return false;
}

void Captures::invalidate(Capture& capture) {
  if (capture.valid) blame(capture);
  capture.valid = false;
}

// Nothing is printed here, and no stack walked: threads that race with this one would no longer.
void Captures::blame(const Capture& capture) {
  ++invalidated_;
  const char* const named = program_call.symbol;
  if (named != nullptr && std::strcmp(named, asked.call) == 0) {
    ++program_call.invalidated;
    return;
  }
  ++invalidated_by_others_;
  last_by_others_ = std::string(asked.call) + " on thread " + std::to_string(this_thread()) +
                    ", in " + (named == nullptr ? "no call" : named) +
                    " of the program; the capture is of thread " + std::to_string(capture.thread);
}

Capture* Captures::by_id(unsigned long long id) {
  const auto it = active_.find(id);
  return it == active_.end() ? nullptr : it->second.get();
}

CUresult Captures::refuse_unsafe() {
  if (active_.empty() || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (auto& entry : active_) {
    Capture& capture = *entry.second;
    const bool own =
        capture.thread == this_thread() && capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool global = thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                        capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !global) continue;
    invalidate(capture);
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult Captures::refuse_in(const Context& context) {
  CUresult result = CUDA_SUCCESS;
  for (auto& entry : active_) {
    Capture& capture = *entry.second;
    if (!takes_part(context, capture)) continue;
    invalidate(capture);
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

bool Captures::legacy_is_entangled(const Stream& stream) const {
  if (stream.kind != Stream::Kind::legacy) return false;
  for (const auto& entry : active_) {
    for (const Stream* member : entry.second->members) {
      if (member->context == stream.context && member->blocking()) return true;
    }
  }
  return false;
}

CUresult Captures::refuse_legacy(const Stream& stream) {
  if (active_.empty() || !legacy_is_entangled(stream)) return CUDA_SUCCESS;
  for (auto& entry : active_) {
    for (const Stream* member : entry.second->members) {
      if (member->context == stream.context && member->blocking()) {
        invalidate(*entry.second);
        break;
      }
    }
  }
  return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult Captures::refuse_on(Stream& stream) {
  if (stream.capture == nullptr) return refuse_legacy(stream);
  if (!stream.capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  invalidate(*stream.capture);
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult Captures::refuse_captured(const Event& event) {
  Capture* const capture = by_id(event.capture_id);
  if (capture == nullptr) return CUDA_SUCCESS;
  invalidate(*capture);
  return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult Captures::add(Stream& stream, CUgraphNodeType type, OpSpec spec) {
  Capture& capture = *stream.capture;
  if (!capture.valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  GraphNode& node = capture.graph->add(type, std::move(spec), stream.capture_tail);
  stream.capture_tail = {&node};
  return CUDA_SUCCESS;
}

CUresult Captures::record(Stream& stream, Event& event) {
  if (!stream.capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  event.capture_id = stream.capture->id;
  event.capture_nodes = stream.capture_tail;
  return CUDA_SUCCESS;
}

CUresult Captures::wait(Stream& stream, Event& event, bool external, bool* handled) {
  Capture* const theirs = by_id(event.capture_id);
  Capture* const ours = stream.capture;
  *handled = theirs != nullptr || ours != nullptr;
  if (!*handled) return CUDA_SUCCESS;
  if (theirs == nullptr) {
    if (!ours->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (external) return add(stream, CU_GRAPH_NODE_TYPE_WAIT_EVENT, OpSpec{});
    invalidate(*ours);
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (!theirs->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (ours != nullptr && ours != theirs) {
    invalidate(*ours);
    invalidate(*theirs);
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (ours == nullptr) {
    if (stream.kind == Stream::Kind::legacy) {
      invalidate(*theirs);
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    stream.capture = theirs;  // it joins the capture
    stream.capture_tail.clear();
    theirs->members.insert(&stream);
  }
  for (GraphNode* node : event.capture_nodes) {
    auto& tail = stream.capture_tail;
    if (std::find(tail.begin(), tail.end(), node) == tail.end()) tail.push_back(node);
  }
  return CUDA_SUCCESS;
}

void Captures::forget(Stream& stream) {
  Capture* const capture = stream.capture;
  invalidate(*capture);
  capture->members.erase(&stream);
  if (capture->origin != &stream) return;
  for (Stream* member : capture->members) {
    member->capture = nullptr;
    member->capture_tail.clear();
  }
  if (!capture->graph_is_the_programs) world().graphs.destroy(capture->graph);
  active_.erase(capture->id);
}

void Captures::abandon(Context& context) {
  std::vector<Stream*> members;
  for (auto& entry : active_) {
    for (Stream* member : entry.second->members) {
      if (member->context == &context) members.push_back(member);
    }
  }
  for (Stream* member : members) {
    if (member->capture != nullptr) forget(*member);
  }
}

}  // namespace cupool::sim
