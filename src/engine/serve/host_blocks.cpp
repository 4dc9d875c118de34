// SPDX-License-Identifier: Apache-2.0
// A map of its own, beside that of device memory, and the table of page-locked memory by address.
#include "engine/serve/host_blocks.h"

#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "engine/block/accounting.h"
#include "engine/host/host_class.h"
#include "engine/reclaim/pinned_memory.h"
#include "engine/serve/retire.h"

namespace cupool::engine {

using stats::Counter;
using stats::Gauge;

void HostBlocks::count(const Block& block, std::int64_t sign) {
  held_.fetch_add(static_cast<std::uint64_t>(sign) * block.capacity, std::memory_order_relaxed);
  block.context->stats().gauge_add(Gauge::host_held_bytes, sign * signed_bytes(block.capacity));
}

Block* HostBlocks::adopt(Context& context, void* address, std::size_t bytes, std::uint8_t tag) {
  Block* const block = new_block();
  if (block == nullptr) return nullptr;
  block->address = reinterpret_cast<CUdeviceptr>(address);
  block->capacity = host_capacity_for(bytes);
  block->requested = bytes;
  block->context = &context;
  block->source = BlockSource::malloc;
  block->kind = tag;
  remember(*block);
  return block;
}

void HostBlocks::remember(Block& block) {
  count(block, +1);
  PinnedMemory::add(address_of(block), block.capacity);
  block.state.store(BlockState::live);
  add_block(map_, &block);
}

void HostBlocks::forget(const Block& block) {
  map_.erase(&block);
  PinnedMemory::remove(address_of(block));
  count(block, -1);
}

bool HostBlocks::release(Context& context, BlockList& blocks) {
  if (blocks.empty()) return false;
  context.stats().add(Counter::host_returned_bytes_total, blocks.bytes);
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context.handle());
  while (Block* const block = blocks.pop()) {
    void* const address = address_of(*block);
    forget(*block);
    delete_block(block);
    if (!scope.ok()) continue;
    const CUresult result = driver_.cuMemFreeHost(address);
    if (cuda::is_passing_refusal(result)) driver_.cuMemFreeHost(address);
  }
  return true;
}

void HostBlocks::context_gone(Context& context, bool alone) {
  for (Block* const block :
       map_.extract([&](const Block& each) { return each.context == &context; })) {
    if (block->state.load() == BlockState::live) {
      context.stats().add(Counter::host_lost_bytes_total, block->requested);
    }
    PinnedMemory::remove(address_of(*block));
    count(*block, -1);
    if (alone) delete_block(block);
  }
}

FoundMemory HostBlocks::find(CUdeviceptr base, CUdeviceptr address) const {
  FoundMemory found;
  const Block* const block = any() ? map_.find(base) : nullptr;
  if (block == nullptr) return found;
  found.nobodys = block->state.load() != BlockState::live || address - base >= block->requested;
  if (!found.nobodys) found.host = block;
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
