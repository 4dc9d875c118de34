// SPDX-License-Identifier: Apache-2.0
// A map of its own, beside that of cudaMalloc's memory.
#include "engine/serve/async_blocks.h"

#include <algorithm>

#include "engine/block/size_class.h"
#include "engine/serve/retire.h"

namespace cupool::engine {

// The context may have ended since the driver's call, or there is no host memory for the record:
// then the memory is the driver's.
void AsyncBlocks::adopt(Context& context, std::uint64_t life, CUdeviceptr address,
                        std::uint64_t capacity, std::uint64_t requested) {
  any_.store(true);
  Block* const block = new_block();
  if (block == nullptr) return;
  block->address = address;
  block->capacity = capacity;
  block->requested = requested;
  block->context = &context;
  block->source = BlockSource::pool;
  block->state.store(BlockState::live);
  if (!remember(*block)) return delete_block(block);
  if (context.incarnation() == life) return;
  const std::uint64_t word = block->state.word();
  if (block->state.claim(word) && forget(*block)) delete_block(block);
}

bool AsyncBlocks::remember(Block& block) {
  held_.fetch_add(block.capacity, std::memory_order_relaxed);
  if (add_block(map_, &block) != &block) return true;
  held_.fetch_sub(block.capacity, std::memory_order_relaxed);
  return false;
}

bool AsyncBlocks::forget(const Block& block) {
  if (!map_.erase(&block)) return false;
  held_.fetch_sub(block.capacity, std::memory_order_relaxed);
  return true;
}

// Before the driver's free: another thread may get the address at once. False: freed before.
bool AsyncBlocks::give_up(CUdeviceptr address, Given* given) {
  Block* const found = find(address);
  if (found == nullptr) return true;
  const std::uint64_t word = found->state.word();
  if (found->address != address) return true;
  given->life = found->context->incarnation();
  if (BlockStateCell::state_of(word) != BlockState::live || !found->state.claim(word)) return false;
  if (forget(*found)) given->block = found;  // else its context has ended
  return true;
}

// Where the context has ended meanwhile, its memory is gone all the same.
void AsyncBlocks::given_up(const Given& given, bool freed) {
  if (freed || given.block->context->incarnation() != given.life) return delete_block(given.block);
  given.block->state.store(BlockState::live);
  if (!remember(*given.block)) delete_block(given.block);
}

// What is idle is nobody's, and so are bytes beyond the request.
FoundMemory AsyncBlocks::find(CUdeviceptr base, CUdeviceptr address) const {
  FoundMemory found;
  const Block* const block = find(base);
  if (block == nullptr) return found;
  found.nobodys = block->state.load() != BlockState::live || address - base >= block->requested;
  if (!found.nobodys) found.as_the_drivers = block;
  return found;
}

void AsyncBlocks::mark_shared_outside(CUdeviceptr base) {
  Block* const block = find(base);
  if (block != nullptr) block->shared_outside.store(true, std::memory_order_relaxed);
}

// Idle blocks, and what live ones have beyond the request, as the driver rounds it.
std::uint64_t AsyncBlocks::unused_bytes(int device) const {
  std::uint64_t sum = 0;
  map_.for_each([&](const Block& block) {
    if (block.context->device().ordinal() != device) return;
    const bool live = block.state.load(std::memory_order_relaxed) == BlockState::live;
    const std::uint64_t used = (block.requested + kAlignment - 1) & ~(kAlignment - 1);
    const std::uint64_t capacity = block.capacity;
    sum += capacity - (live ? std::min(used, capacity) : 0);
  });
  return sum;
}

// A block that the program frees just now stays with that thread, which finds its cache gone, and
// may delete its record once it has left the map. So the record is read, and one that is live
// claimed, as it leaves: no thread can free it any more but by the driver.
void AsyncBlocks::context_gone(Context& context, bool alone) {
  LeftBlocks lost;
  map_.remove_if([&](Block& each) {
    if (each.context != &context) return false;
    held_.fetch_sub(each.capacity, std::memory_order_relaxed);
    const std::uint64_t word = each.state.word();
    const bool live = BlockStateCell::state_of(word) == BlockState::live;
    if (live && each.state.claim(word)) lost.push(&each);
    return true;
  });
  if (!alone) return;
  while (Block* const block = lost.pop()) delete_block(block);
}

}  // namespace cupool::engine
