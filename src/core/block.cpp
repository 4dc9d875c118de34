// Host memory for Block records: a free list that only grows.
#include "core/block.h"

#include <mutex>
#include <new>

namespace cupool::core {
namespace {

std::mutex spare_mutex;
Block* spare = nullptr;

}  // namespace

Block* new_block() {
  {
    const std::lock_guard<std::mutex> lock(spare_mutex);
    if (spare != nullptr) {
      Block* block = spare;
      spare = block->next;
      block->next = nullptr;
      block->shared_outside.store(false, std::memory_order_relaxed);
      block->kind = Block::kNoKind;
      block->state.begin_new_life();
      return block;
    }
  }
  return new (std::nothrow) Block;
}

void delete_block(Block* block) {
  const std::lock_guard<std::mutex> lock(spare_mutex);
  block->next = spare;
  spare = block;
}

}  // namespace cupool::core
