// A block of device memory that the library holds, and lists of blocks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cuda/api.h"

namespace cupool::core {

class Context;

/// live: the program's. retired: freed by the program, GPU work may still use it. quiet: no GPU
/// work can touch it; it lies in the cache.
enum class BlockState : std::uint8_t { live, retired, quiet };

/// Where a block's memory came from, and so where it goes back to. passed_through: the program's
/// own driver allocation; we only know of it, its free is the driver's.
enum class BlockSource : std::uint8_t { pool, malloc, passed_through };

/// Host memory of a Block is never given back to the heap, only used for another Block: a thread
/// that still looks at one while its context is destroyed reads a Block.
struct Block {
  CUdeviceptr address = 0;
  std::uint64_t capacity = 0;   ///< bytes that the backend gave
  std::uint64_t requested = 0;  ///< bytes that the program asked for
  Context* context = nullptr;   ///< the context that was current at the allocation
  Block* next = nullptr;
  std::atomic<BlockState> state{BlockState::live};
  BlockSource source = BlockSource::pool;
  /// Other agents may know the address (IPC, RDMA, SYNC_MEMOPS): never served again.
  std::atomic<bool> shared_outside{false};
};

Block* new_block();
void delete_block(Block* block);

/// A list of blocks threaded through Block::next, with its totals. Not thread-safe.
struct BlockList {
  Block* head = nullptr;
  Block* tail = nullptr;
  std::uint64_t bytes = 0;
  std::size_t count = 0;

  bool empty() const { return head == nullptr; }

  void push(Block* block) {
    block->next = nullptr;
    (head == nullptr ? head : tail->next) = block;
    tail = block;
    bytes += block->capacity;
    ++count;
  }

  Block* pop() {
    Block* block = head;
    if (block == nullptr) return nullptr;
    head = block->next;
    if (head == nullptr) tail = nullptr;
    block->next = nullptr;
    bytes -= block->capacity;
    --count;
    return block;
  }

  /// Appends all of `other` and leaves it empty.
  void splice(BlockList& other) {
    if (other.empty()) return;
    (head == nullptr ? head : tail->next) = other.head;
    tail = other.tail;
    bytes += other.bytes;
    count += other.count;
    other = BlockList{};
  }
};

}  // namespace cupool::core
