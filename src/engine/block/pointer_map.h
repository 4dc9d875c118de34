// SPDX-License-Identifier: Apache-2.0
// The map from device addresses to Blocks, by which a free identifies its pointer. Contains every
// block from its allocation by the backend until its release, in any state.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/block/block.h"
#include "util/lock_order.h"

namespace cupool::engine {

/// Blocks that have left the pointer map, threaded through Block::next_left: the end of a context
/// needs no host memory. Each is in the hands of whoever has the list, and in no other such list: a
/// second push would make a circle. Not thread-safe.
class LeftBlocks {
 public:
  bool empty() const { return head_ == nullptr; }
  void push(Block* block) {
    block->next_left = head_;
    head_ = block;
  }
  Block* pop() {
    Block* const block = head_;
    if (block != nullptr) head_ = block->next_left;
    return block;
  }

 private:
  Block* head_ = nullptr;
};

/// Thread-safe. Look-ups take no lock and write nothing. Insertion and removal, which accompany a
/// backend call, take a lock; only the visitors are called under it.
class PointerMap {
 public:
  /// The first table has room for 2,048 blocks, and takes 64 KiB.
  static constexpr unsigned kFirstLog2 = 12;
  explicit PointerMap(unsigned first_log2 = kFirstLog2);

  /// Adds a block under its address. Returns the block that it replaced, which was freed by a route
  /// that cupool does not see. Returns null if that block is leaving, or if its context is just
  /// ending (`ends(block)`, called under the lock): then the driver has legitimately reused its
  /// address. Throws only std::bad_alloc, without effect.
  template <typename Ends>
  Block* insert(Block* block, const Ends& ends) {
    const std::lock_guard lock(mutex_);
    Block* const replaced = insert_locked(block);
    if (replaced == nullptr || !ends(*replaced)) return replaced;
    replaced_.push(replaced);
    return nullptr;
  }

  /// Removes the block. False: it was no longer in the map.
  bool erase(const Block* block) { return erase(block, block->address); }
  /// The same for one whose record may be another block's by now: it was this address's.
  bool erase(const Block* block, CUdeviceptr address);

  /// The block that begins at `address`, or null.
  Block* find(CUdeviceptr address) const {
    if (address == 0) return nullptr;
    for (;;) {
      const std::uint64_t generation = generation_.load(std::memory_order_acquire);
      const Slot* slot = slot_of(*table_.load(std::memory_order_acquire), address);
      if (slot->key.load(std::memory_order_acquire) == address) {
        Block* const block = slot->block.load(std::memory_order_acquire);
        // In a reused table, another key's block may have come to this place since.
        if (block != nullptr && block->address == address) return block;
      }
      // Not found, unless the table was replaced and reused during the search.
      if (!is_replaced_since(generation)) return nullptr;
    }
  }

  /// As find(), if one probe is enough. Null may mean that more are needed. A block may have
  /// another address: the caller compares.
  [[gnu::always_inline]] Block* find_at_once(CUdeviceptr address) const {
    const Table& table = *table_.load(std::memory_order_acquire);
    const Slot& slot = table.slots[first_index(table, address)];
    const bool there = slot.key.load(std::memory_order_acquire) == address && address != 0;
    return there ? slot.block.load(std::memory_order_acquire) : nullptr;
  }

  /// Removes every block with `belongs(block)`, called once for each under the lock, including
  /// blocks replaced while their context was ending.
  template <typename Belongs>
  void remove_if(const Belongs& belongs) {
    const std::lock_guard lock(mutex_);
    Table& table = *table_.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < std::size_t{1} << table.log2; ++i) {
      Block* block = table.slots[i].block.load(std::memory_order_relaxed);
      if (block == nullptr || !belongs(*block)) continue;
      table.slots[i].block.store(nullptr, std::memory_order_release);
    }
    LeftBlocks kept;
    while (Block* const block = replaced_.pop()) {
      if (!belongs(*block)) kept.push(block);
    }
    replaced_ = kept;
  }

  /// As remove_if(), and returns them. No other thread may have them in its hands.
  template <typename Belongs>
  LeftBlocks extract(const Belongs& belongs) {
    LeftBlocks extracted;
    remove_if([&](Block& block) {
      const bool does = belongs(block);
      if (does) extracted.push(&block);
      return does;
    });
    return extracted;
  }

  /// Result of claim().
  enum class Claim {
    claimed,   ///< the block was live and is now retired
    missing,   ///< no block of cupool begins there
    not_live,  ///< the program has already freed it
    unusable,  ///< its context has a sticky error; no side effect
  };

  /// Claims a live block: live -> freed, for exactly one of several threads that free this
  /// address. `usable(block)`: whether its context has no sticky error.
  template <typename Usable>
  [[gnu::always_inline]] Claim claim(CUdeviceptr address, Block** block, const Usable& usable) {
    Block* found = find(address);
    if (found == nullptr) return Claim::missing;
    // A block that leaves the map meanwhile may be reused by the time of the claim. Then its word
    // has changed, and the claim fails.
    const std::uint64_t word = found->state.word();
    if (found->address != address || found->source == BlockSource::passed_through) {
      return Claim::missing;
    }
    *block = found;
    if (!usable(*found)) return Claim::unusable;
    if (BlockStateCell::state_of(word) != BlockState::live) return Claim::not_live;
    return found->state.claim(word) ? Claim::claimed : Claim::not_live;
  }

  /// Visits every block; `visit` must not call back into the map.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    const std::lock_guard lock(mutex_);
    const Table& table = *table_.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < std::size_t{1} << table.log2; ++i) {
      const Block* block = table.slots[i].block.load(std::memory_order_relaxed);
      if (block != nullptr) visit(*block);
    }
  }

 private:
  // Open addressing. A key, once written, stays; its block may change. A replaced table is kept and
  // may be reused; a thread that still reads it notices.
  struct Slot {
    std::atomic<CUdeviceptr> key{0};
    std::atomic<Block*> block{nullptr};
  };
  struct Table {
    explicit Table(unsigned size_log2)
        : log2(size_log2),
          shift(64 - size_log2),
          mask((std::size_t{1} << size_log2) - 1),
          slots(new Slot[mask + 1]) {}
    const unsigned log2;
    const unsigned shift;  ///< from a hash to an index
    const std::size_t mask;
    const std::unique_ptr<Slot[]> slots;
    std::size_t keys = 0;
  };
  // Addresses are multiples of 512, large ones of 2 MiB: multiplication mixes in the upper bits.
  static std::size_t first_index(const Table& table, CUdeviceptr address) {
    return static_cast<std::size_t>(((address >> 9) * 0x9e3779b97f4a7c15ull) >> table.shift);
  }
  // The slot with this key, or the empty slot for it. There is always an empty slot.
  static Slot* slot_of(const Table& table, CUdeviceptr address) {
    for (std::size_t index = first_index(table, address);; index = (index + 1) & table.mask) {
      Slot& slot = table.slots[index];
      const CUdeviceptr key = slot.key.load(std::memory_order_acquire);
      if (key == address || key == 0) return &slot;
    }
  }
  // The reads of the table come before this one, since each acquires.
  bool is_replaced_since(std::uint64_t generation) const {
    return generation_.load(std::memory_order_relaxed) != generation;
  }
  Block* insert_locked(Block* block);
  void grow_locked();
  Table* spare_table_locked(unsigned log2);

  std::atomic<Table*> table_;
  std::atomic<std::uint64_t> generation_{0};
  std::vector<std::unique_ptr<Table>> tables_;
  LeftBlocks replaced_;  ///< blocks of ending contexts
  mutable util::Ranked<util::LockRank::pointer_map> mutex_;
};

}  // namespace cupool::engine
