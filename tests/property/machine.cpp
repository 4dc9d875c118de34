// SPDX-License-Identifier: Apache-2.0
// The begin and end of a program, its contexts, and the checks that find faults.
#include "machine.h"

#include <cupool_sim.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace cupool::property {
namespace {

thread_local int entered_context = 0;

/// A sticky error that this thread has seen before its next call.
struct Known {
  std::uint64_t generation = 0;  ///< of the context
  int code = 0;
  bool told = false;  ///< cupool has seen it as well
};
thread_local Known known_errors[kContexts];

/// Calls that cupool may answer by itself, or whose driver's answer it sees.
bool is_hooked(const char* call) {
  for (const char* hooked : {"cuMemAlloc", "cuMemFree", "cuMemFreeAsync", "cuCtxSynchronize",
                             "cuMemHostAlloc", "cuMemFreeHost"}) {
    if (std::strcmp(call, hooked) == 0) return true;
  }
  return false;
}

// Fills of nothing, enough for cupool to take the legacy stream for the program's main stream.
void show_main_stream() {
  for (int i = 0; i < 64; ++i) cuMemsetD8Async(0, 0, 0, CU_STREAM_LEGACY);
}

}  // namespace

Machine::Machine(FreeMode free_mode, bool aligns_large)
    : free_mode_(free_mode), aligns_large_(aligns_large) {
  expect(cuInit(0), "cuInit", kNoContext);
  size_t total = 0;
  expect(cuDeviceTotalMem(&total, 0), "cuDeviceTotalMem", kNoContext);
  machinery_.device_bytes = total;
  int devices = 1;
  expect(cuDeviceGetCount(&devices), "cuDeviceGetCount", kNoContext);
  machinery_.devices = static_cast<unsigned>(devices);
  machinery_.host = std::getenv("CUPOOL_TEST_HOST") != nullptr;
  if (const char* const theme = std::getenv("CUPOOL_TEST_WIDE")) {
    machinery_.wide = true;
    machinery_.theme = theme;
  }
}

std::string Machine::run(const Program& program) {
  failure_.clear();
  failed_ = false;
  refused_ = false;
  concurrent_ = program.concurrent;
  late_ = program.device_mode == "late";
  captures_ = false;
  traps_ = false;
  bool second_device = false;
  for (const Operation& op : program.operations) {
    captures_ |= op.kind == Kind::capture_begin || op.kind == Kind::capture_into ||
                 op.kind == Kind::capture_default;
    traps_ |= op.kind == Kind::trap;
    second_device |= op.kind == Kind::device_open;
  }
  for (Slots& slots : slots_) slots = Slots{};
  for (std::uint64_t& number : thread_numbers_) number = ++last_number_;
  live_.clear();
  shared_.clear();
  host_writes_.clear();
  invalidated_ = cupoolSimInvalidatedCaptures();
  invalidated_by_others_ = cupoolSimCapturesInvalidatedByOthers();
  silent_harm = nullptr;
  complaints_ = cupoolSimComplaints();
  cupoolSimSet("mode", program.device_mode.c_str());
  cupoolSimSet("polls", std::to_string(program.polls).c_str());
  if (second_device && machinery_.devices > 1) open_primary(2);
  open_primary(0);
  if (std::getenv("CUPOOL_TEST_LANE") != nullptr) show_main_stream();
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

void Machine::step(const Operation& op) {
  if (static_cast<int>(op.thread) == syncing_thread_) open_gate();
  switch (op.kind) {  // these affect threads other than their own
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
  for (int i = 0; i < static_cast<int>(kContexts); ++i) has_failed(i);
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
    case Kind::buffer_mistake:
      return buffer_mistake(op);
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
    case Kind::capture_into:
    case Kind::capture_default:
      return capture_begin(op);
    case Kind::capture_join:
      return capture_join(op);
    case Kind::capture_fork:
      return capture_fork(op);
    case Kind::capture_end:
      return capture_end(op);
    case Kind::graph_launch:
      return graph_launch(op);
    case Kind::graph_destroy:
      return graph_destroy(op);
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
      return primary_reset(op);
    case Kind::context_life:
      return context_life(op);
    case Kind::peer_access:
      return peer_access(op);
    case Kind::stamp_abroad:
      return stamp_abroad(op);
    case Kind::copy_abroad:
      return copy_abroad(op);
    case Kind::batch_copy:
      return batch_copy(op);
    case Kind::share_block:
      return share_block(op);
    case Kind::errand:
      return errand(op);
    case Kind::trap:
      return trap(op);
    case Kind::host_allocate:
      return host_allocate(op);
    case Kind::host_release:
      return host_release(op);
    case Kind::host_stamp:
      return host_stamp(op);
    case Kind::host_callback:
      return host_callback(op);
    case Kind::host_copy:
      return host_copy(op);
    case Kind::pool_allocate:
      return pool_allocate(op);
    case Kind::pool_stamp:
      return pool_stamp(op);
    case Kind::pool_release:
      return pool_release(op);
    case Kind::pool_settings:
      return pool_settings(op);
    case Kind::kernel_on_address:
      return kernel_on_address(op);
    case Kind::fill_buffer:
      return fill_buffer(op);
    case Kind::many_copies:
      return many_copies(op);
    case Kind::step_aside:
      return step_aside();
    case Kind::green_stream:
      return green_stream(op);
    case Kind::green_memory:
      return green_memory(op);
    case Kind::green_synchronize:
      return green_synchronize();
    case Kind::green_end:
      return green_end();
    case Kind::crowd:
      return crowd(op);
    case Kind::primary_life:
      return primary_life(op);
    case Kind::fill_device:
      return fill_device(op);
    case Kind::lend:
      return lend(op);
    case Kind::lent_stamp:
      return lent_stamp(op);
    case Kind::lent_close:
      return lent_close(op);
    case Kind::thread_restart:
    case Kind::slow_synchronize:
    case Kind::gate_open:
    case Kind::device_open:  // before the first operation
      return;
  }
}

void Machine::fail(const std::string& what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  failed_ = true;
  if (!failure_.empty()) return;
  // If memory returned to the driver too early, a kernel's late access may fail before any check.
  const bool judged = cupoolSimComplaints() != complaints_;
  if (judged) failure_ = std::string("the judge (contract 2): ") + cupoolSimLastComplaint();
  if (!what.empty()) failure_ += (judged ? "; then " : "") + what;
}

// A refusal because of a capture is the program's own fault if the real driver refuses as well.
bool Machine::expect(CUresult result, const char* call, int context) {
  if (context != kNoContext && is_sticky(result, call, context)) return false;
  if (result == CUDA_SUCCESS) return true;
  if (is_capture_refusal(result) && captures_) {
    refused_ = true;
  } else {
    fail(std::string(call) + " answered error " + std::to_string(static_cast<int>(result)));
  }
  return false;
}

// The context's error as known to this thread; only this function queries it.
bool Machine::has_failed(int context) {
  const ContextState& state = contexts_[context];
  if (!traps_ || state.generation == 0) return false;
  Known& known = known_errors[context];
  if (known.generation != state.generation) known = Known{state.generation, 0, false};
  if (known.code == 0) known.code = cupoolSimSticky(state.handle);
  known.told = told_[context].load() == state.generation;
  return known.code != 0;
}

// I7: a call must return an error that existed before it, and none that does not exist after it. It
// may return one that occurred in between. Launches and most waits are not hooked, so cupool does
// not know of errors returned by them. Until it meets such an error, a malloc from the cache and a
// free that does not wait succeed.
bool Machine::is_sticky(CUresult result, const char* call, int context) {
  if (!traps_) return false;
  if (context == kEntered) context = entered_context;
  const Known before = known_errors[context];
  if (!has_failed(context)) return false;
  const bool hooked = is_hooked(call);
  const int code = known_errors[context].code;
  if (hooked && result == code) told_[context] = contexts_[context].generation;
  const bool knew = before.generation == contexts_[context].generation && before.code != 0 &&
                    (!hooked || before.told);
  if (knew && result != code) {
    fail(std::string(call) + " answered " + std::to_string(static_cast<int>(result)) +
         " after the sticky error " + std::to_string(code) + " of its context (I7)");
  }
  return knew || result == code;
}

bool Machine::enter(int context) {
  if (!alive(context)) return false;
  entered_context = context;
  return expect(cuCtxSetCurrent(contexts_[context].handle), "cuCtxSetCurrent", kNoContext);
}

// Contract 2 and 9, I1 to I3.
void Machine::look_for_harm() {
  if (cupoolSimComplaints() != complaints_) fail("");
  // Independent of other refusals: without cupool, such a capture would have been valid.
  const unsigned long long by_others = cupoolSimCapturesInvalidatedByOthers();
  if (by_others != invalidated_by_others_) {
    invalidated_by_others_ = by_others;
    fail(std::string("a capture was invalidated by no call of the program (contract 9, I3): ") +
         cupoolSimLastInvalidatedByOthers());
  }
  if (const char* const call = silent_harm.exchange(nullptr)) {
    fail(std::string("a capture was invalidated by ") + call + ", which did not say so");
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

void Machine::finish_program() {
  open_gate();
  for (Slots& slots : slots_) end_captures(slots);
  concurrent_ = false;
  for (Slots& slots : slots_) finish_slots(slots);
  green_end();
  for (unsigned i = 0; i < kThreads; ++i) {
    if (modes_[i] == CU_STREAM_CAPTURE_MODE_GLOBAL) continue;
    crew_.run(i, [&] {
      CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
      cuThreadExchangeStreamCaptureMode(&mode);
      modes_[i] = CU_STREAM_CAPTURE_MODE_GLOBAL;
    });
  }
  for (int i = 0; i < static_cast<int>(kContexts) && !failed(); ++i) {
    if (!enter(i)) continue;
    expect(cuCtxSynchronize(), "the last cuCtxSynchronize");
    const std::uint64_t* const mismatches = contexts_[i].mismatches;
    if (mismatches != nullptr && *mismatches != 0)
      fail("a check found foreign words (contract 1, 2)");
  }
  if (!failed()) finish_errands();
  for (int i = 0; i < static_cast<int>(kContexts) && !failed(); ++i) {
    if (has_failed(i)) end_context(i);
  }
  look_for_harm();
  for (const int primary : {0, 2}) {
    if (!failed() && enter(primary)) finish_context(primary);
  }
  if (alive(1)) cuCtxDestroy(contexts_[1].handle);
  for (const int primary : {0, 2}) {
    if (!alive(primary)) continue;
    cuDevicePrimaryCtxReset(primary == 2 ? 1 : 0);
    cuDevicePrimaryCtxRelease(primary == 2 ? 1 : 0);
  }
  for (ContextState& context : contexts_) context = ContextState{};
  // A callback of a context that failed may still be on its way: not one of many programs ago.
  constexpr std::size_t kKeptErrands = 256;
  while (errands_.size() > kKeptErrands) errands_.pop_front();
}

// Contract 4: nothing of the program is live, so most of the memory can be allocated.
void Machine::finish_context(int context) {
  CUmemoryPool pool = nullptr;
  if (threshold_ != 0 && cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS) {
    cuMemPoolTrimTo(pool, 0);  // the program's own to keep, and to give back
  }
  CUdeviceptr most = 0;
  if (expect(cuMemAlloc(&most, machinery_.device_bytes / 2),
             "an allocation of half the memory, all free", context)) {
    expect(cuMemFree(most), "cuMemFree", context);
  }
  if (cupoolSimPending() != 0) expect(cuCtxSynchronize(), "cuCtxSynchronize", context);
}

void Machine::end_captures(Slots& slots) {
  for (unsigned i = 0; i < kGraphs; ++i) {
    Capture& capture = slots.captures[i];
    if (!capture.active) continue;
    crew_.run(capture.thread, [&] {
      if (enter(capture.members.front().context)) end_capture(slots, i, true);
    });
    look_for_harm();
  }
}

void Machine::finish_slots(Slots& slots) {
  for (unsigned i = 0; i < kBlocks && !failed(); ++i) {
    Block& block = slots.blocks[i];
    if (block.address != 0 && alive(block.context)) {
      release_block(slots, block, 0, block.context);
    }
  }
  for (HostBlock& block : slots.host_blocks) {
    if (block.memory != nullptr && !failed()) host_release(block, block.context);
  }
  for (PoolBlock& block : slots.pool_blocks) {
    if (block.address == 0 || failed() || !enter(block.context)) continue;
    if (expect(cuCtxSynchronize(), "cuCtxSynchronize")) pool_release(block, nullptr);
  }
  for (unsigned i = 0; i < kLentBlocks && !failed(); ++i) {
    if (slots.lent_blocks[i].address != 0) close_lent(slots, i);
  }
  for (Graph& graph : slots.graphs) graph_destroy(graph);
}

}  // namespace cupool::property
