// The contexts of a program, on one device or two: made and ended, in good health or after an error
// that stays, and the blocks that one context's work uses in another's memory. As with legacy
// memory, the program waits for such guests before it frees.
#include <string>

#include "machine.h"

namespace cupool::property {
namespace {

constexpr int device_of(int context) {
  return context == 2 ? 1 : 0;
}

}  // namespace

// A primary context is kept by one reference, from here to its end.
void Machine::open_primary(int context) {
  ContextState& primary = contexts_[context];
  expect(cuDevicePrimaryCtxRetain(&primary.handle, device_of(context)), "cuDevicePrimaryCtxRetain",
         kNoContext);
  primary.generation = ++last_number_;
  if (enter(context)) load_kernels(primary);
}

// Relaxed: another context may have a capture, which loading would be refused in.
void Machine::load_kernels(ContextState& context) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  cuThreadExchangeStreamCaptureMode(&mode);
  CUmodule module = nullptr;
  expect(cuModuleLoadData(&module, ""), "cuModuleLoadData");
  expect(cuModuleGetFunction(&context.stamp, module, "stamp_u32"), "cuModuleGetFunction");
  expect(cuModuleGetFunction(&context.check, module, "check_u32"), "cuModuleGetFunction");
  expect(cuModuleGetFunction(&context.copy, module, "copy_u32"), "cuModuleGetFunction");
  expect(cuModuleGetFunction(&context.trap, module, "trap"), "cuModuleGetFunction");
  void* memory = nullptr;
  expect(cuMemHostAlloc(&memory, sizeof(std::uint64_t), 0), "cuMemHostAlloc");
  context.mismatches = static_cast<std::uint64_t*>(memory);
  if (memory != nullptr) *context.mismatches = 0;
  cuThreadExchangeStreamCaptureMode(&mode);
}

// Running freely, another thread's capture could begin at any time.
bool Machine::may_synchronize(int context) {
  return concurrent_ ? !captures_ : !captures_in(context);
}

// The context has been synchronised, or is gone: what its work alone used is at rest.
void Machine::settled(Slots& slots, int context) {
  for (Block& block : slots.blocks) {
    block.users &= ~(1u << context);
    if (!block.last.none() && block.last.context == context) block.last = StreamRef{};
    if (block.users != 0) continue;
    if (block.racy) block.known = false;
    block.racy = false;
    block.checked = false;
  }
  host_is_safe(slots, context);
}

// False: a capture does not let it wait.
bool Machine::await_guests(Slots& slots, const Block& block) {
  for (int i = 0; i < static_cast<int>(kContexts); ++i) {
    if (i == block.context || (block.users >> i & 1u) == 0) continue;
    if (!may_synchronize(i) || !enter(i)) return false;
    // The pending work of a context that has failed is gone.
    if (!expect(cuCtxSynchronize(), "cuCtxSynchronize") && !has_failed(i)) return false;
    settled(slots, i);
  }
  return true;
}

bool Machine::await_guests_of(int context) {
  for (Slots& slots : slots_) {
    for (const Block& block : slots.blocks) {
      if (block.address == 0 || block.context != context) continue;
      if (!await_guests(slots, block)) return false;
    }
  }
  return true;
}

void Machine::forget_context(int context) {
  for (unsigned i = 0; i < kThreads; ++i) {
    Slots& slots = slots_[i];
    settled(slots, context);
    for (Block& block : slots.blocks) {
      if (block.address != 0 && block.context == context) {
        disown(block);
        block = Block{};
      }
      if (block.was_context == context) block.was = 0;
    }
    for (StreamRef& stream : slots.streams) {
      if (stream.context == context) stream = StreamRef{};
    }
    for (Event& event : slots.events) {
      if (event.context == context) event = Event{};
    }
    for (Buffer& buffer : slots.buffers) {
      if (buffer.host != nullptr && buffer.context == context) buffer = Buffer{};
    }
    for (unsigned index = 0; index < kGraphs; ++index) {
      const Capture& capture = slots.captures[index];
      if (capture.active && capture.members.front().context == context) lose_capture(slots, index);
      Graph& graph = slots.graphs[index];
      if (graph.exec != nullptr && graph.made_by.members.front().context == context) {
        graph_destroy(graph);
      }
    }
  }
  forget_errands(context);
}

// Destroyed or, if it is a primary one, reset and opened again.
bool Machine::end_context(int context) {
  if (!await_guests_of(context)) return false;
  if (captures_in(context)) refused_ = true;  // they end with it
  if (context == 1) {
    expect(cuCtxDestroy(contexts_[1].handle), "cuCtxDestroy", kNoContext);
  } else {
    expect(cuDevicePrimaryCtxReset(device_of(context)), "cuDevicePrimaryCtxReset", kNoContext);
    expect(cuDevicePrimaryCtxRelease(device_of(context)), "cuDevicePrimaryCtxRelease", kNoContext);
  }
  forget_context(context);
  contexts_[context] = ContextState{};
  if (context != 1) open_primary(context);
  return true;
}

// Contract 5: what is called free can be had, and code loads into it. Where nothing is, the driver
// alone has no room for it either, or no more than a live block keeps (docs/compatibility.md, "A
// device that is nearly full").
bool Machine::code_has_room() {
  constexpr std::size_t kCode = 2u << 20;
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (!enter(0)) return false;
  return !expect(cuMemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo") || free_bytes >= kCode;
}

void Machine::context_create() {
  if (concurrent_ || alive(1) || captures_in(0) || !code_has_room()) return;
  const CUresult result = cuCtxCreate_v2(&contexts_[1].handle, 0, 0);
  if (!expect(result, "cuCtxCreate", kNoContext)) return;
  contexts_[1].generation = ++last_number_;
  if (enter(1)) load_kernels(contexts_[1]);
}

// A failed context has no captures any more that could be harmed.
void Machine::context_destroy() {
  if (concurrent_ || !alive(1) || (captures_in(1) && !has_failed(1))) return;
  open_gate();
  end_context(1);
}

void Machine::primary_reset(const Operation& op) {
  const int context = op.c == 2 && alive(2) ? 2 : 0;
  if (concurrent_ || (captures_in(context) && !has_failed(context))) return;
  open_gate();
  end_context(context);
}

// What a context of the other device had before it was reset, this one may still have.
void Machine::peer_access(const Operation& op) {
  const int context = static_cast<int>(op.c);
  const int other = context == 2 ? 0 : 2;
  const std::uint64_t generation = contexts_[context].generation;
  if (!alive(other) || !enter(context) || reaching_[context] == generation) return;
  const CUresult result = cuCtxEnablePeerAccess(contexts_[other].handle, 0);
  if (result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED || expect(result, "cuCtxEnablePeerAccess")) {
    reaching_[context] = generation;
  }
}

bool Machine::reaches(int context, const Block& block) const {
  return device_of(context) == device_of(block.context) ||
         (alive(context) && reaching_[context] == contexts_[context].generation);
}

// The context's calls answer an error from the moment that this has run.
void Machine::trap(const Operation& op) {
  const int context = static_cast<int>(op.c);
  if (!enter(context)) return;
  const StreamRef where = stream(op, op.b, context);
  if (where.none() || capture_of(slots_of(op), where) != nullptr) return;
  if (where.legacy && !legacy_allowed(context)) return;
  expect(launch(contexts_[context].trap, where, nullptr), "a kernel");
}

void Machine::thread_restart(const Operation& op) {
  if (concurrent_ || op.thread == 0) return;
  for (const Slots& slots : slots_) {
    for (const Capture& capture : slots.captures) {
      if (capture.active && capture.thread == op.thread) return;
    }
  }
  crew_.replace(op.thread);
  thread_numbers_[op.thread] = ++last_number_;
  modes_[op.thread] = CU_STREAM_CAPTURE_MODE_GLOBAL;
}

}  // namespace cupool::property
