// SPDX-License-Identifier: Apache-2.0
// The contexts of a program, on one or two devices: their creation and end, without or after a
// sticky error, and blocks that one context's work uses in another's memory. As with legacy memory,
// the program waits for such foreign work before it frees.
#include <algorithm>
#include <string>
#include <thread>

#include "machine.h"

namespace cupool::property {
namespace {

constexpr int device_of(int context) {
  return context == 2 ? 1 : 0;
}

}  // namespace

// One reference keeps a primary context, from here to its end.
void Machine::open_primary(int context) {
  ContextState& primary = contexts_[context];
  expect(cuDevicePrimaryCtxRetain(&primary.handle, device_of(context)), "cuDevicePrimaryCtxRetain",
         kNoContext);
  primary.generation = ++last_number_;
  if (enter(context)) load_kernels(primary);
}

// Relaxed: loading would be refused during another context's capture.
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

// In concurrent programs, another thread's capture could begin at any time.
bool Machine::may_synchronize(int context) {
  return concurrent_ ? !captures_ : !captures_in(context);
}

// The context has been synchronised, or is gone: blocks that only its work used are unused.
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

// False: a capture forbids the wait.
bool Machine::await_guests(Slots& slots, const Block& block) {
  for (int i = 0; i < static_cast<int>(kContexts); ++i) {
    if (i == block.context || (block.users >> i & 1u) == 0) continue;
    if (!may_synchronize(i) || !enter(i)) return false;
    // The pending work of a failed context is gone.
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
    for (HostBlock& block : slots.host_blocks) {
      if (block.memory == nullptr || block.context != context) continue;
      cupoolSimOwner(block.memory, block.size, 0);
      {
        // The driver has freed it with the context, and may hand out its address again.
        const std::lock_guard<std::mutex> lock(mutex_);
        live_.erase(reinterpret_cast<CUdeviceptr>(block.memory));
      }
      block = HostBlock{};
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
  if (context == 0) green_ = nullptr;
}

// Destroyed or, if it is a primary one, reset and opened again.
bool Machine::end_context(int context) {
  if (!await_guests_of(context)) return false;
  pool_release_of(context);
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

// Contract 5: memory reported as free can be allocated, and code loads into it. If nothing is free,
// the driver alone has no room for it either, or no more than a live block keeps
// (docs/compatibility.md, "A device that is nearly full").
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
  // Else the thread's stack of contexts grows: it may end on another thread, or while another one
  // is current.
  CUcontext made = nullptr;
  expect(cuCtxPopCurrent(&made), "cuCtxPopCurrent", kNoContext);
  if (enter(1)) load_kernels(contexts_[1]);
}

// A failed context has no captures left to harm.
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

// Allocates and frees in the context, so that the calling thread, the context and the ordering all
// have blocks of it; some stay live. False: a failure was found.
bool Machine::use_up(CUcontext context, std::uint64_t size, std::vector<Block>* left) {
  constexpr int kRounds = 2;
  constexpr std::size_t kCount = 300;
  const std::uint64_t bytes = std::min<std::uint64_t>(size, 64u << 10);
  if (!expect(cuCtxSetCurrent(context), "cuCtxSetCurrent", kNoContext)) return false;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<Block> blocks;
    while (blocks.size() < kCount) {
      CUdeviceptr address = 0;
      const CUresult result = cuMemAlloc(&address, bytes);
      if (result == CUDA_ERROR_OUT_OF_MEMORY) break;
      if (!expect(result, "cuMemAlloc", kNoContext)) return false;
      adopt(blocks.emplace_back(), address, bytes, 0);
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (round + 1 == kRounds && i % 4 == 0) {
        left->push_back(blocks[i]);
        continue;
      }
      disown(blocks[i]);
      if (!expect(cuMemFree(blocks[i].address), "cuMemFree", kNoContext)) return false;
    }
  }
  return !failed();
}

// Requests more than is available beside a context, so that idle memory of the device is released.
void Machine::seek_memory(CUcontext context, const std::atomic<bool>& enough) {
  if (!expect(cuCtxSetCurrent(context), "cuCtxSetCurrent", kNoContext)) return;
  while (!enough) {
    CUdeviceptr address = 0;
    const CUresult result = cuMemAlloc(&address, machinery_.device_bytes);
    // The kernels of device 0 are never without memory; the other device may be empty.
    if (result != CUDA_ERROR_OUT_OF_MEMORY && context == contexts_[0].handle) {
      return fail("contexts take no memory");
    }
    if (result == CUDA_SUCCESS) expect(cuMemFree(address), "cuMemFree", kNoContext);
  }
}

// Contract 10 and 11: a context ends while one of its threads ends and another one runs out of
// memory. The next context gets its addresses and its handle.
void Machine::context_life(const Operation& op) {
  constexpr int kLives = 2;
  if (op.size == 0 || captures_ || traps_ || (!concurrent_ && !code_has_room())) return;
  for (int life = 0; life < kLives && !failed(); ++life) {
    CUcontext context = nullptr;
    const CUresult made = cuCtxCreate_v2(&context, 0, 0);
    if (made == CUDA_ERROR_OUT_OF_MEMORY) break;
    if (!expect(made, "cuCtxCreate", kNoContext)) break;
    std::vector<Block> left;
    std::vector<Block> others;
    std::atomic<bool> used{false};
    std::atomic<bool> enough{false};
    std::thread seeker([&] { seek_memory(contexts_[0].handle, enough); });
    std::thread other([&] {
      use_up(context, op.size, &others);
      used = true;  // no CUDA call follows
    });
    const bool right = use_up(context, op.size, &left);
    while (!used) std::this_thread::yield();
    left.insert(left.end(), others.begin(), others.end());
    for (const Block& block : left) disown(block);
    if (right) expect(cuCtxDestroy(context), "cuCtxDestroy", kNoContext);
    enough = true;
    other.join();
    seeker.join();
  }
  enter(0);
}

// The same with a primary context, which a reset ends and opens again.
void Machine::primary_life(const Operation& op) {
  constexpr int kLives = 4;
  if (op.size == 0 || captures_ || traps_ || machinery_.devices < 2 || alive(2)) return;
  if (primary_lives_.exchange(true)) return;  // one at a time
  CUcontext seeks = nullptr;
  const bool can = expect(cuCtxCreate_v2(&seeks, 0, 1), "cuCtxCreate", kNoContext);
  for (int life = 0; can && life < kLives && !failed(); ++life) {
    CUcontext context = nullptr;
    if (!expect(cuDevicePrimaryCtxRetain(&context, 1), "cuDevicePrimaryCtxRetain", kNoContext)) {
      break;
    }
    std::vector<Block> left;
    std::vector<Block> others;
    std::atomic<bool> used{false};
    std::atomic<bool> enough{false};
    std::thread seeker([&] { seek_memory(seeks, enough); });
    std::thread other([&] {
      use_up(context, op.size, &others);
      used = true;  // no CUDA call follows
    });
    const bool right = use_up(context, op.size, &left);
    while (!used) std::this_thread::yield();
    left.insert(left.end(), others.begin(), others.end());
    for (const Block& block : left) disown(block);
    if (right) expect(cuDevicePrimaryCtxReset(1), "cuDevicePrimaryCtxReset", kNoContext);
    enough = true;
    other.join();
    seeker.join();
    expect(cuDevicePrimaryCtxRelease(1), "cuDevicePrimaryCtxRelease", kNoContext);
  }
  if (can) expect(cuCtxDestroy(seeks), "cuCtxDestroy", kNoContext);
  primary_lives_ = false;
  enter(0);
}

// This context may still use memory from before the reset of the other device's context.
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

// The context's calls return an error once this has run.
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
  for (Block& block : slots_[0].blocks) {
    block.left_behind |= block.freed_behind && block.last.thread == thread_numbers_[op.thread];
  }
  crew_.replace(op.thread);
  thread_numbers_[op.thread] = ++last_number_;
  modes_[op.thread] = CU_STREAM_CAPTURE_MODE_GLOBAL;
}

}  // namespace cupool::property
