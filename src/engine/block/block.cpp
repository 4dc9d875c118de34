// SPDX-License-Identifier: Apache-2.0
// Host memory of Block records: a free list that only grows.
#include "engine/block/block.h"
#include "util/lock_order.h"
#include "util/mutation.h"

#include <mutex>
#include <new>

namespace cupool::engine {
namespace {

static_assert(sizeof(Block) == 128, "two cache lines");

util::Ranked<util::LockRank::spare_blocks> spare_mutex;
Block* spare = nullptr;

}  // namespace

Block* new_block() {
  {
    const std::lock_guard lock(spare_mutex);
    if (spare != nullptr) {
      Block* block = spare;
      spare = block->next;
      block->next = nullptr;
      block->shared_outside.store(false, std::memory_order_relaxed);
      block->exported = false;
      block->aside = false;
      block->kind = Block::kNoKind;
      block->lane_epoch = 0;
      return block;
    }
  }
  return new (std::nothrow) Block;
}

void delete_block(Block* block) {
  block->state.begin_new_life();
  if (CUPOOL_MUTATED("leaks-a-record")) return;
  const std::lock_guard lock(spare_mutex);
  block->next = spare;
  spare = block;
}

}  // namespace cupool::engine
