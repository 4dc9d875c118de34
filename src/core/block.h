// A block of device memory that the library holds, and lists of blocks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cuda/api.h"

namespace cupool::core {

class Context;

/// live: the program's. retired: freed by the program, GPU work may still use it; or it is its
/// thread's again, which does not look at each. quiet: no GPU work can touch it; it lies in the
/// cache. leaving: on its way back to the driver's pool, and its thread's alone.
enum class BlockState : std::uint8_t { live, retired, quiet, leaving };

/// Where a block's memory came from, and so where it goes back to. passed_through: the program's
/// own driver allocation; we only know of it, its free is the driver's.
enum class BlockSource : std::uint8_t { pool, malloc, passed_through };

/// A field that a thread may read while the record becomes another block's; what it reads is then
/// not used, because its claim fails.
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

/// A block's state together with the number of lives that its record has had: a claim by a thread
/// that has looked the record up for an earlier life fails. Only claim() is for threads that do not
/// own the block.
class BlockStateCell {
 public:
  BlockState load(std::memory_order order = std::memory_order_seq_cst) const {
    return state_of(word_.load(order));
  }
  void store(BlockState state, std::memory_order order = std::memory_order_seq_cst) {
    word_.store(
        (word_.load(std::memory_order_relaxed) & ~kStateMask) | static_cast<std::uint64_t>(state),
        order);
  }
  void begin_new_life() {
    word_.store((word_.load(std::memory_order_relaxed) & ~kStateMask) + kLife,
                std::memory_order_release);
  }

  std::uint64_t word() const { return word_.load(std::memory_order_acquire); }
  static BlockState state_of(std::uint64_t word) {
    return static_cast<BlockState>(word & kStateMask);
  }
  /// live -> retired, if nothing has changed since `seen` was read.
  bool claim(std::uint64_t seen) {
    const std::uint64_t retired =
        (seen & ~kStateMask) | static_cast<std::uint64_t>(BlockState::retired);
    return word_.compare_exchange_strong(seen, retired, std::memory_order_acq_rel,
                                         std::memory_order_relaxed);
  }

 private:
  static constexpr std::uint64_t kStateMask = 3;
  static constexpr std::uint64_t kLife = 4;
  std::atomic<std::uint64_t> word_{0};
};

/// Host memory of a Block is never given back to the heap, only used for another Block: a thread
/// that still looks at one while its context is destroyed reads a Block.
/// On a cache line of its own, and the one fetched with it: neighbours may be different threads'.
struct alignas(128) Block {
  /// The kind of what may not lie in one list with others without a look at each.
  static constexpr std::uint8_t kNoKind = 0xff;

  Relaxed<CUdeviceptr> address;
  std::uint64_t capacity = 0;  ///< bytes that the backend gave
  /// Bytes that the program asked for. A report reads it while other threads allocate.
  Relaxed<std::uint64_t> requested;
  Relaxed<Context*> context;  ///< the context that was current at the allocation
  Block* next = nullptr;
  BlockStateCell state;
  Relaxed<BlockSource> source;
  /// The same for all small blocks of one size class and one source that nobody else knows.
  Relaxed<std::uint8_t> kind{kNoKind};
  /// Other agents may know the address (IPC, RDMA, SYNC_MEMOPS): never served again.
  std::atomic<bool> shared_outside{false};
  void set_shared_outside() {
    shared_outside.store(true, std::memory_order_relaxed);
    kind = kNoKind;
  }

  // Of the first block of a chain (core/chain_list), or the oldest that is freed
  // (core/freed_blocks).
  std::uint32_t chain_length = 0;
  Block* last_of_chain = nullptr;
  Block* next_chain = nullptr;
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
