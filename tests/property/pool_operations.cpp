// SPDX-License-Identifier: Apache-2.0
// The program's own stream-ordered memory of the default pool, and what it reads and sets of that
// pool (contract 12). Its uses are ordered, so that the judge sees what anybody else does to it.
#include <cupool_sim.h>

#include <algorithm>

#include "machine.h"

namespace cupool::property {
namespace {

constexpr std::uint64_t kMostWords = 64;

void* pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

}  // namespace

void Machine::pool_allocate(const Operation& op) {
  PoolBlock& block = slots_of(op).pool_blocks[op.a % kPoolBlocks];
  const int context = alive(static_cast<int>(op.c)) ? static_cast<int>(op.c) : 0;
  if (block.address != 0 || op.size < 4 || !enter(context)) return;
  const StreamRef where = stream(op, op.b, context);
  if (where.none() || capture_of(slots_of(op), where) != nullptr) return;
  if (where.legacy && !legacy_allowed(context)) return;
  CUdeviceptr address = 0;
  const CUresult result = cuMemAllocAsync(&address, op.size, where.handle);
  const bool none = result == CUDA_ERROR_OUT_OF_MEMORY;
  if (!expect(none ? CUDA_SUCCESS : result, "cuMemAllocAsync") || none) return;
  pool_used_ = true;
  block.address = address;
  block.size = op.size;
  block.context = context;
  block.last = where;
  block.freed_behind = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto next = live_.lower_bound(address);
    const bool collides = (next != live_.end() && next->first < address + op.size) ||
                          (next != live_.begin() && std::prev(next)->second > address);
    live_[address] = address + op.size;
    if (collides && failure_.empty()) {
      failure_ = "stream-ordered memory overlaps a live block (contract 12)";
      failed_ = true;
    }
  }
  cupoolSimOwner(pointer(address), op.size, ++last_number_);
  pool_use(block, where);
}

void Machine::pool_use(const PoolBlock& block, const StreamRef& where) {
  CUdeviceptr at = block.address;
  std::uint64_t words = std::min(block.size / 4, kMostWords);
  auto value = static_cast<std::uint32_t>(++last_number_);
  void* arguments[] = {&at, &words, &value};
  expect(launch(contexts_[block.context].stamp, where, arguments), "a kernel");
}

// Whether work can be submitted there by this thread.
bool Machine::reachable(Slots& slots, const StreamRef& where, unsigned thread) {
  if (where.per_thread && where.thread != thread_numbers_[thread]) return false;
  if (where.legacy && !legacy_allowed(where.context)) return false;
  if (capture_of(slots, where) != nullptr || !alive(where.context)) return false;
  const bool is_default = where.legacy || where.per_thread;
  return is_default ||
         std::any_of(std::begin(slots.streams), std::end(slots.streams),
                     [&](const StreamRef& each) { return each.number == where.number; });
}

void Machine::pool_stamp(const Operation& op) {
  Slots& slots = slots_of(op);
  PoolBlock& block = slots.pool_blocks[op.a % kPoolBlocks];
  if (block.address == 0 || !enter(block.context)) return;
  const StreamRef where = stream(op, op.b, block.context);
  if (where.none() || !reachable(slots, where, op.thread)) return;
  if (!reachable(slots, block.last, op.thread)) return;
  if (block.last.number != where.number) {
    CUevent order = nullptr;
    if (!expect(cuEventCreate(&order, CU_EVENT_DISABLE_TIMING), "cuEventCreate")) return;
    expect(cuEventRecord(order, block.last.handle), "cuEventRecord");
    expect(cuStreamWaitEvent(where.handle, order, 0), "cuStreamWaitEvent");
    cuEventDestroy(order);
  }
  block.last = where;
  block.freed_behind = false;
  pool_use(block, where);
}

// Freed in the order of its last use, without an order once everything is done (1), or behind the
// thread's free of another block: without an order (2), or in any stream (3).
void Machine::pool_release(const Operation& op) {
  Slots& slots = slots_of(op);
  PoolBlock& block = slots.pool_blocks[op.a % kPoolBlocks];
  if (block.address == 0 || !unsafe_allowed(op.thread) || !enter(block.context)) return;
  if (op.c >= 2 && block.freed_behind && block.last.thread == thread_numbers_[op.thread]) {
    const StreamRef where = stream(op, op.b, block.context);
    const bool in_stream = op.c == 3 && !where.none() && reachable(slots, where, op.thread);
    return pool_release(block, in_stream ? &where : nullptr);
  }
  const bool in_order = op.c == 0 && reachable(slots, block.last, op.thread);
  if (!in_order && !may_synchronize(block.context)) return;
  if (!in_order && !expect(cuCtxSynchronize(), "cuCtxSynchronize")) return;
  const StreamRef last = block.last;
  pool_release(block, in_order ? &last : nullptr);
}

// `in_order`: of a stream; null: of none.
void Machine::pool_release(PoolBlock& block, const StreamRef* in_order) {
  cupoolSimOwner(pointer(block.address), block.size, 0);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    live_.erase(block.address);
  }
  expect(in_order != nullptr ? cuMemFreeAsync(block.address, in_order->handle)
                             : cuMemFree(block.address),
         "a free of stream-ordered memory");
  block = PoolBlock{};
}

void Machine::pool_release_of(int context) {
  for (Slots& slots : slots_) {
    for (PoolBlock& block : slots.pool_blocks) {
      if (block.address != 0 && block.context == context && enter(context)) {
        expect(cuCtxSynchronize(), "cuCtxSynchronize");
        pool_release(block, nullptr);
      }
    }
  }
}

// What the program reads is what it has set.
void Machine::pool_settings(const Operation& op) {
  CUmemoryPool pool = nullptr;
  if (concurrent_ || !unsafe_allowed(op.thread) || !enter(0)) return;
  if (!expect(cuDeviceGetDefaultMemPool(&pool, 0), "cuDeviceGetDefaultMemPool")) return;
  cuuint64_t threshold = op.size;
  if (op.a == 1) {
    expect(cuMemPoolTrimTo(pool, 0), "cuMemPoolTrimTo");
  } else if (op.a == 2) {
    expect(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
           "cuMemPoolSetAttribute");
    threshold_ = threshold;
  }
  expect(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
         "cuMemPoolGetAttribute");
  if (!aligns_large_) return;  // cupool's own pool
  if (threshold != threshold_) fail("the pool has a threshold that nobody set (contract 12)");
}

}  // namespace cupool::property
