// SPDX-License-Identifier: Apache-2.0
// A block of device memory held by cupool, and lists of blocks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cuda/api.h"

namespace cupool::engine {

class Context;

/// What a free finds at a block. live: owned by the program. freed: the program's no more; which
/// list it is in says whether it is retired or, in a thread's cache, idle again. cached: in the
/// shared cache, unused by the GPU. leaving: being released to the driver's pool, by one thread.
enum class BlockState : std::uint8_t { live, freed, cached, leaving };

/// The source of a block's memory, which it is released to. passed_through: the driver's own
/// allocation, which the driver frees; cupool only records it.
enum class BlockSource : std::uint8_t { pool, malloc, passed_through };

/// A field that a thread may read while the record is reused for another block. The value read is
/// then discarded, because the thread's claim fails.
template <typename T>
class Relaxed {
 public:
  Relaxed() = default;
  explicit Relaxed(T value) : value_(value) {}
  // As std::atomic does it. NOLINTNEXTLINE(misc-unconventional-assign-operator)
  T operator=(T value) {
    value_.store(value, std::memory_order_relaxed);
    return value;
  }
  operator T() const { return value_.load(std::memory_order_relaxed); }
  T operator->() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<T> value_{};
};

/// A block's state with the number of lives of its record. A thread's claim fails if it looked the
/// record up in an earlier life. Threads that do not own the block may only call claim().
class BlockStateCell {
 public:
  BlockState load(std::memory_order order = std::memory_order_seq_cst) const {
    return state_of(word_.load(order));
  }
  /// Returns the word, by which the block can be claimed when others know it.
  std::uint64_t store(BlockState state, std::memory_order order = std::memory_order_seq_cst) {
    const std::uint64_t word =
        (word_.load(std::memory_order_relaxed) & ~kStateMask) | static_cast<std::uint64_t>(state);
    word_.store(word, order);
    return word;
  }
  /// The record is nobody's, and will be reused. Not live until its owner says so: a thread that
  /// looked it up in an earlier life must not claim it in between, nor while it is nobody's.
  void begin_new_life() {
    const std::uint64_t next_life = (word_.load(std::memory_order_relaxed) & ~kStateMask) + kLife;
    word_.store(next_life | static_cast<std::uint64_t>(BlockState::leaving),
                std::memory_order_release);
  }

  std::uint64_t word() const { return word_.load(std::memory_order_acquire); }
  static BlockState state_of(std::uint64_t word) {
    return static_cast<BlockState>(word & kStateMask);
  }
  /// live -> freed, if the word still equals `seen`.
  bool claim(std::uint64_t seen) {
    const std::uint64_t freed =
        (seen & ~kStateMask) | static_cast<std::uint64_t>(BlockState::freed);
    return word_.compare_exchange_strong(seen, freed, std::memory_order_acq_rel,
                                         std::memory_order_relaxed);
  }

 private:
  static constexpr std::uint64_t kStateMask = 3;
  static constexpr std::uint64_t kLife = 4;
  std::atomic<std::uint64_t> word_{0};
};

/// The memory of a Block record is never returned to the heap, only reused for another Block: a
/// thread that still reads a record while its context is destroyed reads a Block. Aligned to two
/// cache lines, which are fetched together, because neighbours may be used by different threads.
struct alignas(128) Block {
  /// Kind of a block that must be checked individually, so that it cannot be in a chain.
  static constexpr std::uint8_t kNoKind = 0xff;

  Relaxed<CUdeviceptr> address;
  Relaxed<std::uint64_t> capacity;  ///< bytes allocated by the backend
  /// Bytes requested by the program. A report reads it while other threads allocate.
  Relaxed<std::uint64_t> requested;
  Relaxed<Context*> context;  ///< the context that was current at the allocation
  Block* next = nullptr;
  BlockStateCell state;
  Relaxed<BlockSource> source;
  /// Equal for all small blocks of one size class and one source that only cupool and the program
  /// know.
  Relaxed<std::uint8_t> kind{kNoKind};
  /// Hardware or other processes may know the address (IPC, RDMA, SYNC_MEMOPS): not cached.
  std::atomic<bool> shared_outside{false};
  /// Exported as a descriptor, whose end is not announced: the memory is never reused.
  Relaxed<bool> exported{false};
  /// Number of the epoch that was open when the block was freed in a lane (engine/reclaim/lane):
  /// the GPU may use the cached block until it is complete. 0: it was cached behind a fence. Of
  /// retired page-locked or stream-ordered memory: the epoch behind which it is idle.
  Relaxed<std::uint64_t> lane_epoch{0};
  /// Set aside: freed, and neither cached nor released while its context lives.
  Relaxed<bool> aside{false};
  void set_shared_outside() {
    shared_outside.store(true, std::memory_order_relaxed);
    kind = kNoKind;
  }

  // Valid for the first block of a chain (engine/block/chain_list), or the oldest of a run
  // (engine/block/freed_blocks).
  std::uint32_t chain_length = 0;
  Block* last_of_chain = nullptr;
  Block* next_chain = nullptr;

  // Valid for idle page-locked (engine/host/host_cache) and stream-ordered memory
  // (engine/async/stream_caches).
  Block* newer = nullptr;
  std::uint32_t idle_since = 0;  ///< step of decay
  std::uint32_t idle_turn = 0;
  /// Of page-locked memory: its number in the table of such memory (engine/reclaim/pinned_memory).
  Relaxed<std::uint64_t> pinned_number{0};
  /// The next of those that have left the pointer map (LeftBlocks).
  Block* next_left = nullptr;
};

/// Makes a cached block the program's, for a request of `bytes`. Returns its address. The caller
/// holds off the end of its context: by the lock of the cache that it comes from, or by a visit.
inline CUdeviceptr hand_over(Block& block, std::uint64_t bytes) {
  block.requested = bytes;
  block.state.store(BlockState::live, std::memory_order_release);
  return block.address;
}

/// A record for a block. Null: host memory is exhausted.
Block* new_block();
/// Gives a record up, whose life ends at once. The caller is its only owner.
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

  /// Appends all blocks of `other`, which is then empty.
  void splice(BlockList& other) {
    if (other.empty()) return;
    (head == nullptr ? head : tail->next) = other.head;
    tail = other.tail;
    bytes += other.bytes;
    count += other.count;
    other = BlockList{};
  }
};

}  // namespace cupool::engine
