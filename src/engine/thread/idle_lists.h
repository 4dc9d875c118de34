// SPDX-License-Identifier: Apache-2.0
// The cached blocks of a thread, by size class.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/block/block.h"
#include "engine/block/block_cache.h"
#include "engine/block/freed_blocks.h"
#include "engine/block/size_class.h"

namespace cupool::engine {

/// `most_bytes`: the limit for all lists together. Not thread-safe.
class IdleLists {
 public:
  /// The class of 2 MiB, the unit of large blocks: requests of this class and above are large.
  static constexpr std::size_t kLargeClass = kSmallClasses - 1;

  std::uint64_t bytes() const { return bytes_; }

  /// Pops a block for a request of `bytes`, or returns null.
  Block* pop(std::uint64_t bytes) {
    const std::size_t index = small_class_of_request(bytes);
    return index < kLargeClass ? pop_small(index) : pop_large(capacity_for(bytes));
  }
  bool has_small(std::size_t index) const { return small_[index].head != nullptr; }
  bool has_large() const { return large_count_ != 0; }
  Block* pop_small(std::size_t index) {
    SmallList& small = small_[index];
    Block* block = small.head;
    if (block == nullptr) return nullptr;
    small.head = block->next;
    __builtin_prefetch(small.head, 1);  // the next call's; may be in another processor's cache
    if (small.popped_from == 0) small.popped_from = 1;
    if (--small.count < small.fewest) small.fewest = small.count;
    bytes_ -= block->capacity;
    return block;
  }
  /// Pops the best fit, or returns null.
  Block* pop_large(std::uint64_t capacity);

  /// Caches one block. False: it does not fit.
  bool cache_one(Block* block, std::uint64_t most_bytes);
  /// Caches blocks of one capacity. The excess over `most_bytes` stays in `blocks`.
  void cache(BlockList& blocks, std::uint64_t most_bytes);
  /// Caches blocks that the thread has freed, those of one kind as a whole, and adds their bytes to
  /// `*reclaimed`. Adds to `surplus` the blocks that do not fit, blocks that only other threads
  /// allocate, and those with `unfit(block)`, whose answer is the same for all blocks of a kind.
  template <typename Unfit>
  void cache_freed(FreedBlocks& freed, std::uint64_t most_bytes, const Unfit& unfit,
                   BlockList* surplus, std::int64_t* reclaimed);

  /// Counts a flushed batch.
  void count_batch() { ++batches_; }
  /// At the end of a period of batches, gives up the blocks that the thread did not need.
  void end_period(BlockList* surplus, std::int64_t* reclaimed) {
    if (batches_ >= kBatchesOfAPeriod) shed(surplus, reclaimed);
  }

  /// Takes out all blocks.
  BlockList pop_all();

  /// Number of blocks of a kind to pop from the shared cache at once; it grows with each call.
  std::size_t refill() {
    refill_ = std::min(2 * refill_, kLargestRefill);
    return refill_;
  }

 private:
  static constexpr std::size_t kLargestRefill = BlockCache::kLongestChain;
  static constexpr std::size_t kLargeSlots = 48;
  static constexpr unsigned kBatchesOfAPeriod = 8;

  // Last in, first out. `fewest` is the lowest count in this period: the thread did not need that
  // many. Kept small, because thread caches may outlive their context.
  struct SmallList {
    Block* head = nullptr;
    std::uint32_t count = 0;
    std::uint32_t fewest : 30;
    std::uint32_t popped_from : 1;  ///< popped from in this period
    std::uint32_t only_freed : 1;   ///< not popped from in the last period
    SmallList() : fewest(0), popped_from(0), only_freed(0) {}
  };

  void cache_chain(SmallList& small, BlockList& blocks);
  bool cache_whole(BlockList& blocks, std::uint64_t most_bytes, BlockList* surplus,
                   std::int64_t* reclaimed);
  void shed(BlockList* surplus, std::int64_t* reclaimed);

  std::size_t refill_ = 1;
  std::uint64_t bytes_ = 0;
  std::size_t large_count_ = 0;
  unsigned batches_ = 0;  ///< in this period
  std::array<Block*, kLargeSlots> large_{};
  std::array<std::uint32_t, kLargeSlots> large_units_{};  ///< capacities, in units of kLargeUnit
  std::array<SmallList, kSmallClasses> small_{};
};

inline bool IdleLists::cache_one(Block* block, std::uint64_t most_bytes) {
  if (bytes_ + block->capacity > most_bytes) return false;
  if (!is_large(block->capacity)) {
    const std::uint8_t kind = block->kind;
    SmallList& small =
        small_[kind != Block::kNoKind ? small_class_of_kind(kind) : small_class(block->capacity)];
    if (small.only_freed) return false;
    block->next = small.head;
    small.head = block;
    ++small.count;
  } else if (large_count_ < kLargeSlots) {
    large_units_[large_count_] = static_cast<std::uint32_t>(block->capacity / kLargeUnit);
    large_[large_count_++] = block;
  } else {
    return false;
  }
  bytes_ += block->capacity;
  return true;
}

inline void IdleLists::cache_chain(SmallList& small, BlockList& blocks) {
  blocks.tail->next = small.head;
  small.head = blocks.head;
  small.count += static_cast<std::uint32_t>(blocks.count);
  bytes_ += blocks.bytes;
  blocks = BlockList{};
}

// Caches small blocks of one kind, all of them fit for it. False: they exceed `most_bytes`.
inline bool IdleLists::cache_whole(BlockList& blocks, std::uint64_t most_bytes, BlockList* surplus,
                                   std::int64_t* reclaimed) {
  SmallList& small = small_[small_class(blocks.head->capacity)];
  if (small.only_freed) {
    surplus->splice(blocks);
    return true;
  }
  if (bytes_ + blocks.bytes > most_bytes) return false;
  *reclaimed += static_cast<std::int64_t>(blocks.bytes);
  cache_chain(small, blocks);
  return true;
}

template <typename Unfit>
void IdleLists::cache_freed(FreedBlocks& freed, std::uint64_t most_bytes, const Unfit& unfit,
                            BlockList* surplus, std::int64_t* reclaimed) {
  const auto cache_each = [&](BlockList& blocks) {
    while (Block* block = blocks.pop()) {
      if (unfit(*block) || !cache_one(block, most_bytes)) {
        surplus->push(block);
      } else {
        *reclaimed += static_cast<std::int64_t>(block->capacity);
      }
    }
  };
  freed.bytes = 0;
  while (!freed.chains.empty()) {
    BlockList chain = freed.chains.pop();
    if (unfit(*chain.head) || !cache_whole(chain, most_bytes, surplus, reclaimed))
      cache_each(chain);
  }
  cache_each(freed.others);
}

}  // namespace cupool::engine
