// SPDX-License-Identifier: Apache-2.0
// The guard of all exported functions, the threads' context stacks, and the two ways in which
// work enters a stream: to be executed, or to be captured.
#include "driver/entry.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "driver/lifecycle.h"

namespace cupool::sim {

namespace {

constexpr int kDeepest = 16;  // static thread-local memory is short in libraries that are opened
// Trivial on purpose: thread-exit destructors of the program still call CUDA.
thread_local NamedContext stack[kDeepest];
thread_local int depth = 0;
// Whether the call has submitted work that others may see.
thread_local bool submitted = false;
std::atomic<unsigned long long> late_returns{0};

}  // namespace

Entry::Entry(Call call, bool per_thread, Needs needs) : per_thread_(per_thread) {
  count_call(call);
  submitted = false;
  asked = Asked{call_symbol(call), nullptr, nullptr};
  World& w = world();
  if (needs == Needs::init) {
    result_ = alive();
    if (result_ == CUDA_SUCCESS && in_host_function) result_ = CUDA_ERROR_NOT_PERMITTED;
  }
  if (result_ == CUDA_SUCCESS) {
    const InjectedFault fault = injected_fault(call);
    result_ = fault.code;
    if (fault.stays) fail_for_good(fault.code);
    while (fault.hangs) std::this_thread::sleep_for(std::chrono::hours(1));
  }
  if (result_ != CUDA_SUCCESS || needs == Needs::nothing) return;
  lock_ = Lock(w.mutex);
  began_ns_ = w.settings.mode == Mode::timed ? now_ns() : 0;
}

Entry::~Entry() {
  if (submitted && world().settings.return_ms != 0) {
    pause_ms_ += world().settings.return_ms;
    ++late_returns;
  }
  if (pause_ms_ != 0) {
    lock_.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms_));
    return;
  }
  if (cost_ns_ == 0 || began_ns_ == 0) return;
  // With the lock held, as the driver's own lock is: threads that allocate at once queue up
  // (measured: 16 threads have fewer pairs a second than two).
  while (now_ns() - began_ns_ < cost_ns_) {
  }
}

CUresult Entry::current(Context** context) {
  const NamedContext current = current_context();
  *context = current.context;
  return current.usable();
}

CUresult Entry::current_if_any() const {
  const NamedContext current = current_context();
  return current.context == nullptr ? CUDA_SUCCESS : current.usable();
}

CUresult Entry::stream(CUstream handle, Stream** stream) {
  asked.what = "stream";
  asked.handle = handle;
  const bool per_thread = handle == CU_STREAM_PER_THREAD || (handle == nullptr && per_thread_);
  if (per_thread || handle == nullptr || handle == CU_STREAM_LEGACY) {
    Context* context = nullptr;
    const CUresult result = current(&context);
    if (result != CUDA_SUCCESS) return result;
    GreenContext* const green = current_context().green;
    if (green != nullptr) {
      *stream = per_thread ? &per_thread_stream(*green) : green->default_stream;
    } else {
      *stream = per_thread ? &per_thread_stream(*context) : &context->legacy;
    }
    return CUDA_SUCCESS;
  }
  auto* const candidate = reinterpret_cast<Stream*>(handle);
  if (world().streams.count(candidate) == 0) {
    if (world().destroyed_streams.count(candidate) != 0) {
      world().judge.destroyed_stream_used(asked.call);
    }
    return CUDA_ERROR_INVALID_HANDLE;
  }
  *stream = candidate;
  return NamedContext{candidate->context, candidate->green}.usable();
}

CUresult Entry::event(CUevent handle, Event** event) {
  auto* const candidate = reinterpret_cast<Event*>(handle);
  if (handle == nullptr || world().events.count(candidate) == 0) return CUDA_ERROR_INVALID_HANDLE;
  *event = candidate;
  asked.what = "event";
  asked.handle = handle;
  return NamedContext{candidate->context, nullptr}.usable();
}

CUresult Entry::device(CUdevice ordinal, Device** device) {
  World& w = world();
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= w.devices.size()) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *device = w.devices[static_cast<size_t>(ordinal)].get();
  return CUDA_SUCCESS;
}

CUresult perform(Stream& stream, CUgraphNodeType type, OpSpec spec) {
  Captures& captures = world().captures;
  if (stream.capture != nullptr) return captures.add(stream, type, std::move(spec));
  const CUresult refused = captures.refuse_legacy(stream);
  if (refused != CUDA_SUCCESS) return refused;
  if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
    submit_kernel(stream, std::move(spec));
  } else {
    stream.overlap = {};
    submit(stream, std::move(spec));
  }
  returns_late();
  return stream.context->sticky;
}

CUresult perform_dependent(Entry& in, Stream& stream, OpSpec spec) {
  if (stream.capture != nullptr) return perform(stream, CU_GRAPH_NODE_TYPE_KERNEL, std::move(spec));
  World& w = world();
  const CUresult refused = w.captures.refuse_legacy(stream);
  if (refused != CUDA_SUCCESS) return refused;
  const OpRef launch = submit_dependent(stream, std::move(spec));
  if (w.settings.mode == Mode::late) w.engine.hasten(in.lock(), {launch});
  returns_late();
  return stream.context->sticky;
}

void returns_late() {
  submitted = true;
}

unsigned long long calls_that_returned_late() {
  return late_returns;
}

CUresult wait_for(Entry& in, Context& context, const std::vector<OpRef>& ops) {
  world().engine.complete(in.lock(), ops);
  return context.sticky;
}

NamedContext current_context() {
  return depth == 0 ? NamedContext{} : stack[depth - 1];
}

void set_current_context(NamedContext context) {
  if (depth == 0) {
    if (context.context != nullptr) stack[depth++] = context;
  } else if (context.context == nullptr) {
    --depth;
  } else {
    stack[depth - 1] = context;
  }
}

bool push_context(NamedContext context) {
  if (depth == kDeepest) return false;
  stack[depth++] = context;
  return true;
}

bool pop_context(NamedContext* context) {
  if (depth == 0) return false;
  *context = stack[--depth];
  return true;
}

}  // namespace cupool::sim
