// SPDX-License-Identifier: Apache-2.0
// Page-locked memory that kernels and copies of any context use. The driver's free waits for them,
// so its next owner, the host, may write at once; the judge tells whether it may.
#include <cupool_sim.h>

#include <algorithm>

#include "machine.h"

namespace cupool::property {
namespace {

// Whoever writes to a block writes its owner's number: a host function is no access that the judge
// sees.
void write_owner(void* memory, std::uint64_t owner) {
  __atomic_store_n(static_cast<std::uint32_t*>(memory), static_cast<std::uint32_t>(owner),
                   __ATOMIC_RELAXED);
}

}  // namespace

void Machine::host_allocate(const Operation& op) {
  HostBlock& block = slots_of(op).host_blocks[op.a % kHostBlocks];
  const int context = alive(static_cast<int>(op.c)) ? static_cast<int>(op.c) : 0;
  if (block.memory != nullptr || op.size == 0 || !unsafe_allowed(op.thread) || !enter(context)) {
    return;
  }
  constexpr unsigned kFlags[] = {0, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_WRITECOMBINED};
  void* memory = nullptr;
  if (!expect(cuMemHostAlloc(&memory, op.size, kFlags[op.b % 3]), "cuMemHostAlloc")) return;
  block = HostBlock{memory, op.size, ++last_number_, context};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto begin = reinterpret_cast<CUdeviceptr>(memory);
    const auto next = live_.lower_bound(begin);
    const bool collides = (next != live_.end() && next->first < begin + op.size) ||
                          (next != live_.begin() && std::prev(next)->second > begin);
    live_[begin] = begin + op.size;
    if (collides && failure_.empty()) {
      failure_ = "page-locked memory overlaps a live block (contract 14)";
      failed_ = true;
    }
  }
  cupoolSimOwner(memory, op.size, block.owner);
  cupoolSimHostAccess(memory, op.size, 1);
  if (op.size >= 4) write_owner(memory, block.owner);
}

void Machine::host_release(const Operation& op) {
  Slots& slots = slots_of(op);
  HostBlock& block = slots.host_blocks[op.a % kHostBlocks];
  const int other = static_cast<int>(op.c);
  const int context = block.context;
  if (block.memory == nullptr || !unsafe_allowed(op.thread)) return;
  if (!host_release(block, alive(other) ? other : context)) return;
  if (free_mode_ == FreeMode::ordered) return;
  host_is_safe(slots, context);
  next_uses_are_ordered(slots, op.thread, context);
}

bool Machine::host_release(HostBlock& block, int current) {
  if (has_failed(current)) current = block.context;
  if (!alive(block.context) || !enter(current)) return false;
  const HostBlock freed = block;
  // (Threads of a concurrent program run each other's kernels meanwhile.)
  if (freed.size >= 4 && !concurrent_ &&
      __atomic_load_n(static_cast<std::uint32_t*>(freed.memory), __ATOMIC_RELAXED) !=
          static_cast<std::uint32_t>(freed.owner)) {
    fail("somebody else wrote to page-locked memory (contract 14)");
    return false;
  }
  const auto begin = reinterpret_cast<CUdeviceptr>(freed.memory);
  cupoolSimOwner(freed.memory, freed.size, 0);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    live_.erase(begin);
  }
  if (expect(cuMemFreeHost(freed.memory), "cuMemFreeHost", freed.context)) {
    block = HostBlock{};
    return true;
  }
  cupoolSimOwner(freed.memory, freed.size, freed.owner);
  const std::lock_guard<std::mutex> lock(mutex_);
  live_[begin] = begin + freed.size;
  return false;
}

// What a capture records is used when its graph runs, which may be after the free: not here.
void Machine::host_stamp(const Operation& op) {
  Slots& slots = slots_of(op);
  const HostBlock& block = slots.host_blocks[op.a % kHostBlocks];
  const int context = alive(static_cast<int>(op.c)) ? static_cast<int>(op.c) : 0;
  if (block.memory == nullptr || block.size < 4 || !enter(context)) return;
  const StreamRef where = stream(op, op.b, context);
  if (where.none() || capture_of(slots, where) != nullptr) return;
  if (where.legacy && !legacy_allowed(context)) return;
  auto at = reinterpret_cast<CUdeviceptr>(block.memory);
  std::uint64_t words = std::min<std::uint64_t>(block.size / 4, 64);
  auto value = static_cast<std::uint32_t>(block.owner);
  void* arguments[] = {&at, &words, &value};
  expect(launch(contexts_[context].stamp, where, arguments), "a kernel");
}

// Of any context, too: the driver's free waits for the host functions of all.
void Machine::host_callback(const Operation& op) {
  Slots& slots = slots_of(op);
  const HostBlock& block = slots.host_blocks[op.a % kHostBlocks];
  const int context = alive(static_cast<int>(op.c)) ? static_cast<int>(op.c) : 0;
  if (block.memory == nullptr || block.size < 4 || !enter(context)) return;
  const StreamRef where = stream(op, op.b, context);
  if (where.none() || capture_of(slots, where) != nullptr) return;
  if (where.legacy && !legacy_allowed(context)) return;
  HostBlock* writes = nullptr;  // may never run, if the context fails or ends
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    writes = &host_writes_.emplace_back(block);
  }
  const auto write = [](void* data) {
    const auto* const to = static_cast<const HostBlock*>(data);
    write_owner(to->memory, to->owner);
  };
  expect(cuLaunchHostFunc(where.handle, write, writes), "cuLaunchHostFunc");
}

void Machine::host_copy(const Operation& op) {
  Slots& slots = slots_of(op);
  const HostBlock& block = slots.host_blocks[op.a % kHostBlocks];
  Block& to = slots.blocks[op.c % kBlocks];
  if (block.memory == nullptr || to.address == 0 || to.words == 0 || !enter(to.context)) return;
  const StreamRef where = stream(op, op.b, to.context);
  if (where.none() || capture_of(slots, where) != nullptr) return;
  if (!use(slots, op.c % kBlocks, where)) return;
  const std::size_t bytes = std::min<std::uint64_t>(to.words * 4, block.size);
  expect(cuMemcpyHtoDAsync(to.address + to.offset, block.memory, bytes, where.handle),
         "cuMemcpyHtoDAsync");
  to.known = false;
}

}  // namespace cupool::property
