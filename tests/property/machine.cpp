// A program's beginning and end, its contexts, and the places where faults are noticed.
#include "machine.h"

#include <cupool_sim.h>

#include <cstdio>
#include <cstring>

namespace cupool::property {
namespace {

bool is_capture_refusal(CUresult result) {
  const int code = static_cast<int>(result);
  return code >= 900 && code <= 908;
}

}  // namespace

Machine::Machine(FreeMode free_mode, bool aligns_large)
    : free_mode_(free_mode), aligns_large_(aligns_large) {
  expect(cuInit(0), "cuInit");
  size_t total = 0;
  expect(cuDeviceTotalMem(&total, 0), "cuDeviceTotalMem");
  device_bytes_ = total;
}

std::string Machine::run(const Program& program) {
  failure_.clear();
  failed_ = false;
  refused_ = false;
  concurrent_ = program.concurrent;
  late_ = program.device_mode == "late";
  captures_ = false;
  for (const Operation& op : program.operations) captures_ |= op.kind == Kind::capture_begin;
  for (Slots& slots : slots_) slots = Slots{};
  for (std::uint64_t& number : thread_numbers_) number = ++last_number_;
  live_.clear();
  invalidated_ = cupoolSimInvalidatedCaptures();
  complaints_ = cupoolSimComplaints();
  cupoolSimSet("mode", program.device_mode.c_str());
  cupoolSimSet("polls", std::to_string(program.polls).c_str());
  open_primary();
  if (concurrent_) {
    const auto all_of = [&](unsigned thread) {
      for (const Operation& op : program.operations) {
        if (op.thread == thread && !failed()) run_on_this_thread(op);
      }
    };
    for (unsigned i = 1; i < kThreads; ++i) crew_.start(i, [=] { all_of(i); });
    all_of(0);
    for (unsigned i = 1; i < kThreads; ++i) crew_.finish(i);
    look_for_harm();
  } else {
    for (const Operation& op : program.operations) {
      if (!failed()) step(op);
    }
  }
  finish_program();
  return failure_;
}

// The primary context is kept by one reference, from here to the end of the program.
void Machine::open_primary() {
  ContextState& primary = contexts_[0];
  expect(cuDevicePrimaryCtxRetain(&primary.handle, 0), "cuDevicePrimaryCtxRetain");
  expect(cuCtxSetCurrent(primary.handle), "cuCtxSetCurrent");
  load_kernels(primary);
}

void Machine::load_kernels(ContextState& context) {
  CUmodule module = nullptr;
  if (!expect(cuModuleLoadData(&module, ""), "cuModuleLoadData")) return;
  expect(cuModuleGetFunction(&context.stamp, module, "stamp_u32"), "cuModuleGetFunction");
  expect(cuModuleGetFunction(&context.check, module, "check_u32"), "cuModuleGetFunction");
  expect(cuModuleGetFunction(&context.copy, module, "copy_u32"), "cuModuleGetFunction");
  void* memory = nullptr;
  expect(cuMemHostAlloc(&memory, sizeof(std::uint64_t), 0), "cuMemHostAlloc");
  context.mismatches = static_cast<std::uint64_t*>(memory);
  if (memory != nullptr) *context.mismatches = 0;
}

void Machine::step(const Operation& op) {
  if (static_cast<int>(op.thread) == syncing_thread_) open_gate();
  switch (op.kind) {  // these concern other threads than their own
    case Kind::thread_restart:
      thread_restart(op);
      break;
    case Kind::slow_synchronize:
      slow_synchronize(op);
      break;
    case Kind::gate_open:
      open_gate();
      break;
    default:
      crew_.run(op.thread, [&] { run_on_this_thread(op); });
  }
  look_for_harm();
}

void Machine::run_on_this_thread(const Operation& op) {
  switch (op.kind) {
    case Kind::allocate:
      return allocate(op);
    case Kind::release:
      return release(op);
    case Kind::release_again:
      return release_again(op);
    case Kind::release_in_stream:
      return release_in_stream(op);
    case Kind::stamp:
      return stamp(op);
    case Kind::check:
      return check(op);
    case Kind::copy_blocks:
      return copy_blocks(op);
    case Kind::copy_in:
      return copy_buffer(op, true);
    case Kind::copy_out:
      return copy_buffer(op, false);
    case Kind::kernel_on_buffer:
      return kernel_on_buffer(op);
    case Kind::host_touch:
      return host_touch(op);
    case Kind::buffer_create:
      return buffer_create(op);
    case Kind::buffer_destroy:
      return buffer_destroy(op);
    case Kind::stream_create:
      return stream_create(op);
    case Kind::stream_destroy:
      return stream_destroy(op);
    case Kind::stream_synchronize:
      return stream_synchronize(op);
    case Kind::context_synchronize:
      return context_synchronize(op);
    case Kind::event_record:
    case Kind::event_wait:
    case Kind::event_query:
    case Kind::event_synchronize:
      return event(op);
    case Kind::capture_begin:
      return capture_begin(op);
    case Kind::capture_fork:
      return capture_fork(op);
    case Kind::capture_end:
      return capture_end(op);
    case Kind::graph_launch:
      return graph_launch(op);
    case Kind::graph_destroy:
      return graph_destroy(slots_of(op).graphs[op.a % kGraphs]);
    case Kind::callback:
      return callback(op);
    case Kind::memory_info:
      return memory_info();
    case Kind::thread_mode:
      return thread_mode(op);
    case Kind::context_create:
      return context_create();
    case Kind::context_destroy:
      return context_destroy();
    case Kind::primary_reset:
      return primary_reset();
    case Kind::thread_restart:
    case Kind::slow_synchronize:
    case Kind::gate_open:
      return;
  }
}

void Machine::fail(const std::string& what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.empty()) failure_ = what;
  failed_ = true;
}

// A refusal because of a capture is the program's own fault where the real driver refuses as well.
bool Machine::expect(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return true;
  if (is_capture_refusal(result) && captures_) {
    refused_ = true;
  } else {
    fail(std::string(call) + " answered error " + std::to_string(static_cast<int>(result)));
  }
  return false;
}

// Contract 2 and 9, I1 to I3.
void Machine::look_for_harm() {
  if (cupoolSimComplaints() != complaints_) {
    complaints_ = cupoolSimComplaints();
    fail(std::string("the judge (contract 2): ") + cupoolSimLastComplaint());
  }
  const unsigned long long invalidated = cupoolSimInvalidatedCaptures();
  if (invalidated != invalidated_) {
    invalidated_ = invalidated;
    if (!refused_) fail("a capture was invalidated by no call of the program (contract 9, I3)");
    for (Slots& slots : slots_) {
      for (Capture& capture : slots.captures) capture.harmed = true;
    }
  }
  if (!concurrent_) refused_ = false;
}

bool Machine::enter(int context) {
  return alive(context) && expect(cuCtxSetCurrent(contexts_[context].handle), "cuCtxSetCurrent");
}

void Machine::finish_program() {
  open_gate();
  for (Slots& slots : slots_) finish_slots(slots);
  for (unsigned i = 0; i < kThreads; ++i) {
    if (modes_[i] == CU_STREAM_CAPTURE_MODE_GLOBAL) continue;
    crew_.run(i, [&] {
      CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
      cuThreadExchangeStreamCaptureMode(&mode);
      modes_[i] = CU_STREAM_CAPTURE_MODE_GLOBAL;
    });
  }
  for (int i = 0; i < 2 && !failed(); ++i) {
    if (!enter(i)) continue;
    expect(cuCtxSynchronize(), "the last cuCtxSynchronize");
    if (*contexts_[i].mismatches != 0) fail("a check found foreign words (contract 1, 2)");
  }
  look_for_harm();
  if (!failed() && enter(0)) {
    // Contract 4: nothing of the program lives, so most of the memory is to be had.
    CUdeviceptr most = 0;
    if (expect(cuMemAlloc(&most, device_bytes_ / 2),
               "an allocation of half the memory, all free")) {
      expect(cuMemFree(most), "cuMemFree");
    }
    if (cupoolSimPending() != 0) expect(cuCtxSynchronize(), "cuCtxSynchronize");
  }
  if (alive(1)) cuCtxDestroy(contexts_[1].handle);
  contexts_[1] = ContextState{};
  cuDevicePrimaryCtxReset(0);
  cuDevicePrimaryCtxRelease(0);
  contexts_[0] = ContextState{};
}

void Machine::finish_slots(Slots& slots) {
  for (unsigned i = 0; i < kGraphs; ++i) {
    Capture& capture = slots.captures[i];
    if (!capture.active) continue;
    crew_.run(capture.thread, [&] {
      if (enter(capture.members.front().context)) end_capture(slots, i, true);
    });
    look_for_harm();
  }
  for (unsigned i = 0; i < kBlocks && !failed(); ++i) {
    Block& block = slots.blocks[i];
    if (block.address != 0 && alive(block.context)) release_block(block, 0, block.context);
  }
  for (Graph& graph : slots.graphs) graph_destroy(graph);
}

void Machine::forget_context(int context) {
  for (Slots& slots : slots_) {
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
    for (Capture& capture : slots.captures) {
      if (capture.active && capture.members.front().context == context) capture = Capture{};
    }
    for (Graph& graph : slots.graphs) {
      if (graph.exec != nullptr && graph.made_by.members.front().context == context) {
        graph_destroy(graph);
      }
    }
  }
}

void Machine::context_create() {
  if (concurrent_ || alive(1) || captures_in(0)) return;
  // Live blocks may lie in all steps of driver pools that are left; the code of another context has
  // no room then: a limit that docs/compatibility.md states, and contract 4 not yet kept.
  constexpr std::size_t kPoolSteps = std::size_t{64} << 20;
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  expect(cuMemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo");
  if (free_bytes < kPoolSteps) return;
  const CUresult result = cuCtxCreate_v2(&contexts_[1].handle, 0, 0);
  if (!expect(result, "cuCtxCreate")) return;
  load_kernels(contexts_[1]);
}

void Machine::context_destroy() {
  if (concurrent_ || !alive(1) || captures_in(1)) return;
  open_gate();
  expect(cuCtxDestroy(contexts_[1].handle), "cuCtxDestroy");
  forget_context(1);
  contexts_[1] = ContextState{};
}

void Machine::primary_reset() {
  if (concurrent_ || captures_in(0)) return;
  open_gate();
  expect(cuDevicePrimaryCtxReset(0), "cuDevicePrimaryCtxReset");
  expect(cuDevicePrimaryCtxRelease(0), "cuDevicePrimaryCtxRelease");
  forget_context(0);
  open_primary();
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
