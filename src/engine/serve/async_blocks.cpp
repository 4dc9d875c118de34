// SPDX-License-Identifier: Apache-2.0
// A map of its own, beside that of cudaMalloc's memory.
#include "engine/serve/async_blocks.h"

#include "engine/async/stream_class.h"
#include "engine/serve/retire.h"

namespace cupool::engine {

namespace {

// Keeps the sum of what the driver counts as used and the program does not use: capacity that is
// not live, and what live blocks have beyond the request, as the driver rounds it. Each step adds
// its own part, in whatever order threads take them; those of a cache come with its counts.
void add_unused(Context& context, std::int64_t bytes) {
  context.stats().unused_stream_ordered.fetch_add(bytes, std::memory_order_relaxed);
}

std::int64_t used_of(const Block& block) {
  return static_cast<std::int64_t>(stream_used(block.requested, block.capacity));
}

}  // namespace

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
  const std::uint64_t word = block->state.store(BlockState::live);
  const std::int64_t used = used_of(*block);  // once known, the block may be another's
  if (!remember(*block)) return delete_block(block);
  context.stats().unused_stream_ordered.fetch_sub(used, std::memory_order_relaxed);
  if (context.incarnation() == life) return;
  if (!claim(*block, word)) return;
  forget(*block);
  delete_block(block);
}

bool AsyncBlocks::remember(Block& block) {
  count(*block.context, block.capacity, 1);
  if (add_block(map_, &block) != &block) return true;
  count(*block.context, block.capacity, -1);
  return false;
}

bool AsyncBlocks::forget(const Block& block, CUdeviceptr address) {
  // Read before: out of the map, its owner may delete it.
  const std::uint64_t capacity = block.capacity;
  Context& context = *block.context;
  if (!map_.erase(&block, address)) return false;
  count(context, capacity, -1);
  return true;
}

void AsyncBlocks::count(Context& context, std::uint64_t capacity, int blocks) {
  const std::int64_t bytes = static_cast<std::int64_t>(capacity) * blocks;
  held_.fetch_add(static_cast<std::uint64_t>(bytes), std::memory_order_relaxed);
  add_unused(context, bytes);
}

bool AsyncBlocks::claim(Block& block, std::uint64_t word) {
  if (!block.state.claim(word)) return false;
  add_unused(*block.context, used_of(block));
  return true;
}

// It may have no record any more.
void AsyncBlocks::drop_lost(Block& block) {
  add_unused(*block.context, used_of(block));
  forget(block);
  delete_block(&block);
}

// Before the driver's free: another thread may get the address at once. False: freed before.
bool AsyncBlocks::give_up(CUdeviceptr address, Given* given) {
  Block* const found = find(address);
  if (found == nullptr) return true;
  const std::uint64_t word = found->state.word();
  if (found->address != address) return true;
  given->life = found->context->incarnation();
  if (BlockStateCell::state_of(word) != BlockState::live || !claim(*found, word)) return false;
  if (forget(*found)) {
    given->block = found;
  } else {
    delete_block(found);  // its context has ended, and has passed over what was claimed
  }
  return true;
}

// Where the context has ended meanwhile, its memory is gone all the same.
void AsyncBlocks::given_up(const Given& given, bool freed) {
  if (freed || given.block->context->incarnation() != given.life) return delete_block(given.block);
  const std::int64_t used = used_of(*given.block);
  Context& context = *given.block->context;
  given.block->state.store(BlockState::live);
  if (!remember(*given.block)) return delete_block(given.block);
  context.stats().unused_stream_ordered.fetch_sub(used, std::memory_order_relaxed);
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

// A block that the program frees just now stays with that thread, which finds its cache gone, and
// may delete its record once it has left the map. So the record is read, and one that is live
// claimed, as it leaves: no thread can free it any more but by the driver.
void AsyncBlocks::context_gone(Context& context, bool alone) {
  LeftBlocks lost;
  ContextLife::fence();
  map_.remove_if([&](Block& each) {
    if (each.context != &context) return false;
    count(context, each.capacity, -1);
    const std::uint64_t word = each.state.word();
    const bool live = BlockStateCell::state_of(word) == BlockState::live;
    if (live && claim(each, word)) lost.push(&each);
    return true;
  });
  if (!alone) return;
  while (Block* const block = lost.pop()) delete_block(block);
}

}  // namespace cupool::engine
