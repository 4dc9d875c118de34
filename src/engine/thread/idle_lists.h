// SPDX-License-Identifier: Apache-2.0
// The cached blocks of a thread, by size class.
#pragma once

#include <algorithm>
#include <array>
#include <bitset>
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

  /// Pops a block for a request of `bytes`, or returns null. Freed blocks of that class are cached
  /// from now on.
  Block* pop(std::uint64_t bytes) {
    const std::size_t index = small_class_of_request(bytes);
    if (index >= kLargeClass) return pop_large(capacity_for(bytes));
    requested_.set(index);
    return pop_small(index);
  }
  bool has_small(std::size_t index) const { return small_[index] != nullptr; }
  bool has_large() const { return large_count_ != 0; }
  Block* pop_small(std::size_t index) {
    Block*& head = small_[index];
    Block* block = head;
    if (block == nullptr) return nullptr;
    head = block->next;
    __builtin_prefetch(head, 1);  // the next call's; may be in another processor's cache
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
  /// `*reclaimed`. Adds to `surplus` the blocks that do not fit, small blocks of classes that the
  /// thread never requested, because other threads allocate these, and those with `unfit(block)`,
  /// whose answer is the same for all blocks of a kind.
  template <typename Unfit>
  void cache_freed(FreedBlocks& freed, std::uint64_t most_bytes, const Unfit& unfit,
                   BlockList* surplus, std::int64_t* reclaimed);

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

  bool is_requested(const Block& block) const {
    return is_large(block.capacity) || requested_[small_class(block.capacity)];
  }
  void cache_chain(BlockList& blocks);
  bool cache_whole(BlockList& blocks, std::uint64_t most_bytes, std::int64_t* reclaimed);

  std::size_t refill_ = 1;
  std::uint64_t bytes_ = 0;
  std::size_t large_count_ = 0;
  std::array<Block*, kLargeSlots> large_{};
  std::array<std::uint32_t, kLargeSlots> large_units_{};  ///< capacities, in units of kLargeUnit
  std::array<Block*, kSmallClasses> small_{};             ///< heads; last in, first out
  std::bitset<kSmallClasses> requested_;                  ///< since the last pop_all()
};

inline bool IdleLists::cache_one(Block* block, std::uint64_t most_bytes) {
  if (bytes_ + block->capacity > most_bytes) return false;
  if (!is_large(block->capacity)) {
    const std::uint8_t kind = block->kind;
    Block*& head =
        small_[kind != Block::kNoKind ? small_class_of_kind(kind) : small_class(block->capacity)];
    block->next = head;
    head = block;
  } else if (large_count_ < kLargeSlots) {
    large_units_[large_count_] = static_cast<std::uint32_t>(block->capacity / kLargeUnit);
    large_[large_count_++] = block;
  } else {
    return false;
  }
  bytes_ += block->capacity;
  return true;
}

inline void IdleLists::cache_chain(BlockList& blocks) {
  Block*& head = small_[small_class(blocks.head->capacity)];
  blocks.tail->next = head;
  head = blocks.head;
  bytes_ += blocks.bytes;
  blocks = BlockList{};
}

// Caches small blocks of one kind, all of them fit for it. False: they exceed `most_bytes`.
inline bool IdleLists::cache_whole(BlockList& blocks, std::uint64_t most_bytes,
                                   std::int64_t* reclaimed) {
  if (bytes_ + blocks.bytes > most_bytes) return false;
  *reclaimed += static_cast<std::int64_t>(blocks.bytes);
  cache_chain(blocks);
  return true;
}

template <typename Unfit>
void IdleLists::cache_freed(FreedBlocks& freed, std::uint64_t most_bytes, const Unfit& unfit,
                            BlockList* surplus, std::int64_t* reclaimed) {
  const auto cache_each = [&](BlockList& blocks) {
    while (Block* block = blocks.pop()) {
      if (unfit(*block) || !is_requested(*block) || !cache_one(block, most_bytes)) {
        surplus->push(block);
      } else {
        *reclaimed += static_cast<std::int64_t>(block->capacity);
      }
    }
  };
  freed.bytes = 0;
  while (!freed.chains.empty()) {
    BlockList chain = freed.chains.pop();
    if (!is_requested(*chain.head)) {
      surplus->splice(chain);
    } else if (unfit(*chain.head) || !cache_whole(chain, most_bytes, reclaimed)) {
      cache_each(chain);
    }
  }
  cache_each(freed.others);
}

}  // namespace cupool::engine
