// SPDX-License-Identifier: Apache-2.0
// Host callbacks of the program: callbacks that do nothing, that block the device, and that
// allocate and free memory. The driver refuses those calls; cupool may serve them, and must hold no
// lock that a waiting thread has.
#include <cupool_sim.h>

#include <chrono>

#include "machine.h"

namespace cupool::property {
namespace {

// Blocks a host function until the program releases it, but never for long.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
  bool open = true;
};
Gate& gate() {
  static Gate* const instance = new Gate;
  return *instance;
}
constexpr auto kLongestHold = std::chrono::milliseconds(5);

void stand_at_gate(void*) {
  Gate& g = gate();
  std::unique_lock<std::mutex> lock(g.mutex);
  g.reached = true;
  g.changed.notify_all();
  g.changed.wait_for(lock, kLongestHold, [&] { return g.open; });
}

}  // namespace

void Machine::callback(const Operation& op) {
  if (!enter(0)) return;
  const StreamRef where = stream(op, op.b, 0);
  if (where.none() || (where.legacy && !legacy_allowed(0))) return;
  expect(cuLaunchHostFunc(
             where.handle, [](void*) {}, nullptr),
         "cuLaunchHostFunc");
}

// Earlier work in the same stream uses the block, so that the callback may free it.
void Machine::errand(const Operation& op) {
  Slots& slots = slots_of(op);
  if (op.size == 0 || !enter(0)) return;
  const StreamRef where = stream(op, op.b, 0);
  if (where.none() || capture_of(slots, where) != nullptr || !unsafe_allowed(op.thread)) return;
  if (where.legacy && !legacy_allowed(0)) return;
  CUdeviceptr address = 0;
  const CUresult result = cuMemAlloc(&address, op.size);
  const bool none = result == CUDA_ERROR_OUT_OF_MEMORY;
  if (!expect(none ? CUDA_SUCCESS : result, "cuMemAlloc") || none) return;
  Errand* errand = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    shared_.erase(address);
    errand = &errands_.emplace_back();
  }
  errand->machine = this;
  errand->size = op.size;
  adopt(errand->gift, address, op.size, 0);
  std::uint32_t value = 1;
  void* arguments[] = {&address, &errand->gift.words, &value};
  expect(launch(contexts_[0].stamp, where, arguments), "a kernel");
  const auto call = [](void* data) {
    auto* const own = static_cast<Errand*>(data);
    own->machine->run_errand(*own);
  };
  expect(cuLaunchHostFunc(where.handle, call, errand), "cuLaunchHostFunc");
}

// The driver's answer, or success if cupool needs no driver.
void Machine::run_errand(Errand& errand) {
  const auto answered = [&](CUresult result, const char* call) {
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_PERMITTED) {
      fail(std::string(call) + " in a callback answered error " +
           std::to_string(static_cast<int>(result)));
    }
    return result == CUDA_SUCCESS;
  };
  const std::lock_guard<std::mutex> lock(errand.mutex);
  if (errand.dropped) return;
  const Block gift = errand.gift;
  disown(gift);
  if (answered(cuMemFree(gift.address), "cuMemFree")) {
    errand.gift = Block{};
  } else {
    own_again(gift);
  }
  CUdeviceptr address = 0;
  if (answered(cuMemAlloc(&address, errand.size), "cuMemAlloc")) {
    adopt(errand.taken, address, errand.size, 0);
  }
}

// All contexts have been synchronised: no callback is pending.
void Machine::finish_errands() {
  for (Errand& errand : errands_) {
    for (Block* block : {&errand.gift, &errand.taken}) {
      if (block->address == 0 || !enter(block->context)) continue;
      const Block freed = *block;
      disown(freed);
      if (!expect(cuMemFree(freed.address), "cuMemFree")) own_again(freed);
      *block = has_failed(freed.context) ? freed : Block{};
    }
  }
}

// For a context that is gone.
void Machine::forget_errands(int context) {
  if (context != 0) return;  // callbacks belong to that one
  for (Errand& errand : errands_) {
    const std::lock_guard<std::mutex> lock(errand.mutex);
    errand.dropped = true;
    for (Block* block : {&errand.gift, &errand.taken}) {
      if (block->address == 0) continue;
      disown(*block);
      *block = Block{};
    }
  }
}

// A long synchronisation of the context while other threads continue: it does not cover their frees
// in the meantime. Skipped where frees may wait for the callback, since it would only cost time.
void Machine::slow_synchronize(const Operation& op) {
  if (op.thread == 0 || syncing_thread_ >= 0 || !late_ || free_mode_ != FreeMode::ordered) return;
  if (captures_ || !alive(0)) return;
  // Not on the other thread, which has no order with the next operation.
  const StreamRef where = stream(op, op.b, 0);
  if (where.none()) return;
  Gate& g = gate();
  {
    const std::lock_guard<std::mutex> lock(g.mutex);
    g.reached = false;
    g.open = false;
  }
  syncing_thread_ = static_cast<int>(op.thread);
  crew_.start(op.thread, [this, where] {
    if (!enter(0)) return;
    expect(cuLaunchHostFunc(where.handle, stand_at_gate, nullptr), "cuLaunchHostFunc");
    expect(cuCtxSynchronize(), "cuCtxSynchronize");
  });
  std::unique_lock<std::mutex> lock(g.mutex);
  g.changed.wait_for(lock, kLongestHold, [&] { return g.reached; });
}

void Machine::open_gate() {
  if (syncing_thread_ < 0) return;
  Gate& g = gate();
  {
    const std::lock_guard<std::mutex> lock(g.mutex);
    g.open = true;
  }
  g.changed.notify_all();
  crew_.finish(static_cast<unsigned>(syncing_thread_));
  syncing_thread_ = -1;
}

}  // namespace cupool::property
