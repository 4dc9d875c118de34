// SPDX-License-Identifier: Apache-2.0
// The table behind PointerMap.
#include "engine/block/pointer_map.h"

namespace cupool::engine {

PointerMap::PointerMap(unsigned first_log2) : table_(nullptr) {
  tables_.push_back(std::make_unique<Table>(first_log2));
  table_.store(tables_.back().get(), std::memory_order_release);
}

// Returns the replaced block, if the caller has to handle it.
Block* PointerMap::insert_locked(Block* block) {
  Table* table = table_.load(std::memory_order_relaxed);
  const CUdeviceptr address = block->address;
  Slot* slot = slot_of(*table, address);
  if (slot->key.load(std::memory_order_relaxed) == 0) {
    if (2 * (table->keys + 1) > (std::size_t{1} << table->log2)) {
      grow_locked();
      table = table_.load(std::memory_order_relaxed);
      slot = slot_of(*table, address);
    }
    ++table->keys;
  }
  Block* replaced = slot->block.exchange(block, std::memory_order_acq_rel);
  slot->key.store(address, std::memory_order_release);
  // The thread that removes a leaving block takes this lock first, and deletes the block
  // afterwards.
  const bool leaves =
      replaced != nullptr && replaced->state.load(std::memory_order_relaxed) == BlockState::leaving;
  return leaves ? nullptr : replaced;
}

// Drops keys without a block, so that a table with changing addresses does not grow forever.
void PointerMap::grow_locked() {
  const Table& old = *table_.load(std::memory_order_relaxed);
  const std::size_t size = std::size_t{1} << old.log2;
  std::size_t blocks = 0;
  for (std::size_t i = 0; i < size; ++i) {
    blocks += old.slots[i].block.load(std::memory_order_relaxed) != nullptr ? 1 : 0;
  }
  Table* table = spare_table_locked(4 * blocks > size ? old.log2 + 1 : old.log2);
  for (std::size_t i = 0; i < size; ++i) {
    Block* block = old.slots[i].block.load(std::memory_order_relaxed);
    if (block == nullptr) continue;
    Slot* slot = slot_of(*table, block->address);
    slot->block.store(block, std::memory_order_relaxed);
    slot->key.store(block->address, std::memory_order_release);
    ++table->keys;
  }
  generation_.fetch_add(1, std::memory_order_acq_rel);
  table_.store(table, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_acq_rel);
}

// An empty table: a replaced one, or a new one.
PointerMap::Table* PointerMap::spare_table_locked(unsigned log2) {
  for (const std::unique_ptr<Table>& spare : tables_) {
    if (spare->log2 != log2 || spare.get() == table_.load(std::memory_order_relaxed)) continue;
    generation_.fetch_add(1, std::memory_order_acq_rel);
    // Who sees anything of what follows sees the new number, too.
    std::atomic_thread_fence(std::memory_order_release);
    for (std::size_t i = 0; i < std::size_t{1} << log2; ++i) {
      spare->slots[i].block.store(nullptr, std::memory_order_relaxed);
      spare->slots[i].key.store(0, std::memory_order_relaxed);
    }
    spare->keys = 0;
    return spare.get();
  }
  tables_.push_back(std::make_unique<Table>(log2));
  return tables_.back().get();
}

bool PointerMap::erase(const Block* block, CUdeviceptr address) {
  const std::lock_guard lock(mutex_);
  Slot* slot = slot_of(*table_.load(std::memory_order_relaxed), address);
  if (slot->block.load(std::memory_order_relaxed) != block) return false;
  slot->block.store(nullptr, std::memory_order_release);
  return true;
}

}  // namespace cupool::engine
