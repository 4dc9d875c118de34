// SPDX-License-Identifier: Apache-2.0
// A map of its own, beside that of device memory, and the table of page-locked memory by address.
#include "engine/serve/host_blocks.h"

#include <array>
#include <cstddef>

#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "engine/block/accounting.h"
#include "engine/host/host_class.h"
#include "engine/reclaim/pinned_memory.h"
#include "engine/serve/retire.h"

namespace cupool::engine {

using stats::Counter;
using stats::Gauge;

void HostBlocks::count(Context& context, std::uint64_t capacity, std::int64_t sign) {
  held_.fetch_add(static_cast<std::uint64_t>(sign) * capacity, std::memory_order_relaxed);
  context.stats().gauge_add(Gauge::host_held_bytes, sign * signed_bytes(capacity));
}

Block* HostBlocks::adopt(Context& context, void* address, std::size_t bytes, std::uint8_t tag,
                         std::uint64_t* word) {
  Block* const block = new_block();
  if (block == nullptr) return nullptr;
  block->address = reinterpret_cast<CUdeviceptr>(address);
  block->capacity = host_capacity_for(bytes);
  block->requested = bytes;
  block->context = &context;
  block->source = BlockSource::malloc;
  block->kind = tag;
  *word = block->state.store(BlockState::live);
  if (remember(*block)) return block;
  delete_block(block);
  return nullptr;
}

// The memory itself stays page-locked, and on record as such, whatever becomes of its block.
bool HostBlocks::remember(Block& block) {
  count(*block.context, block.capacity, +1);
  block.pinned_number = PinnedMemory::add(address_of(block), block.capacity);
  block.state.store(BlockState::live);
  if (add_block(map_, &block) != &block) return true;
  count(*block.context, block.capacity, -1);
  return false;
}

bool HostBlocks::forget(const Block& block, CUdeviceptr address) {
  // Read before: out of the map, its owner may delete it.
  const std::uint64_t number = block.pinned_number;
  const std::uint64_t capacity = block.capacity;
  Context* const context = block.context;
  if (!map_.erase(&block, address)) return false;
  PinnedMemory::remove(reinterpret_cast<const void*>(address), number);
  count(*context, capacity, -1);
  return true;
}

void HostBlocks::release(Block& block) {
  Context& context = *block.context;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context.handle());
  void* const address = address_of(block);
  const std::uint64_t bytes = block.capacity;
  if (!forget(block)) return;
  delete_block(&block);
  context.stats().add(Counter::host_returned_bytes_total, bytes);
  if (!scope.ok()) return;
  const CUresult result = driver_.cuMemFreeHost(address);
  if (cuda::is_passing_refusal(result)) driver_.cuMemFreeHost(address);
}

// A block that the program frees just now stays with that thread, which finds the context gone, and
// may delete its record once it has left the map. So the record is read, and one that is live
// claimed, as it leaves.
void HostBlocks::context_gone(Context& context, BlockList& cached, bool alone) {
  while (Block* const block = cached.pop()) {
    forget(*block);
    if (alone) delete_block(block);
  }
  const auto lose = [&](const void* address, std::uint64_t number, std::uint64_t capacity) {
    PinnedMemory::remove(address, number);
    count(context, capacity, -1);
  };
  struct InHands {  // of another thread
    const void* address;
    std::uint64_t pinned_number;
    std::uint64_t capacity;
  };
  std::array<InHands, 64> others;  // some at a time
  std::size_t count_of_others = 0;
  LeftBlocks lost;
  ContextLife::fence();
  do {
    count_of_others = 0;
    map_.remove_if([&](Block& each) {
      if (each.context != &context) return false;
      const std::uint64_t word = each.state.word();
      if (BlockStateCell::state_of(word) == BlockState::live && each.state.claim(word)) {
        lost.push(&each);
        return true;
      }
      if (count_of_others == others.size()) return false;
      others[count_of_others++] = {address_of(each), each.pinned_number, each.capacity};
      return true;
    });
    for (std::size_t i = 0; i < count_of_others; ++i) {
      lose(others[i].address, others[i].pinned_number, others[i].capacity);
    }
  } while (count_of_others == others.size());
  while (Block* const block = lost.pop()) {
    lose(address_of(*block), block->pinned_number, block->capacity);
    context.stats().add(Counter::host_lost_bytes_total, block->requested);
    if (alone) delete_block(block);
  }
}

FoundMemory HostBlocks::find(CUdeviceptr base, CUdeviceptr address) const {
  FoundMemory found;
  const Block* const block = any() ? map_.find(base) : nullptr;
  if (block == nullptr) return found;
  found.nobodys = block->state.load() != BlockState::live || address - base >= block->requested;
  if (!found.nobodys) found.as_the_drivers = block;
  return found;
}

FoundMemory HostBlocks::find_around(CUdeviceptr address) const {
  return any() ? find(PinnedMemory::start_of(address), address) : FoundMemory{};
}

void HostBlocks::mark_shared_outside(CUdeviceptr address) {
  Block* const block = any() ? map_.find(PinnedMemory::start_of(address)) : nullptr;
  if (block != nullptr) block->shared_outside.store(true, std::memory_order_relaxed);
}

}  // namespace cupool::engine
