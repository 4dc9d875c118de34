// From a device address to its Block: how a free finds out whose pointer it was given. Holds every
// block from its allocation by the backend until it goes back there, whatever its state.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "core/block.h"
#include "core/context.h"

namespace cupool::core {

/// Thread-safe. Looking up takes no lock and writes nothing; adding and taking out, which go with a
/// call of the backend, take one. Calls nothing foreign under it but the visitors.
class PointerMap {
 public:
  PointerMap();

  /// Adds a block under its address; one that stood there (freed behind our back) is replaced and
  /// returned, unless it is leaving: the driver has handed its address out again.
  Block* insert(Block* block);

  /// Takes the block out. False if it was not there any more.
  bool erase(const Block* block);

  /// The block that begins at `address`, or null.
  Block* find(CUdeviceptr address) const {
    if (address == 0) return nullptr;
    for (;;) {
      const std::uint64_t generation = generation_.load(std::memory_order_acquire);
      const Slot* slot = slot_of(*table_.load(std::memory_order_acquire), address);
      if (slot->key.load(std::memory_order_acquire) == address) {
        Block* block = slot->block.load(std::memory_order_acquire);
        if (block != nullptr) return block;
      }
      // Not there, unless the table was replaced, and used for another one, while we looked.
      if (!is_replaced_since(generation)) return nullptr;
    }
  }

  /// The same if it takes one look; null may mean that it takes more.
  [[gnu::always_inline]] Block* find_at_once(CUdeviceptr address) const {
    const Table& table = *table_.load(std::memory_order_acquire);
    const Slot& slot = table.slots[first_index(table, address)];
    const bool there = slot.key.load(std::memory_order_acquire) == address && address != 0;
    return there ? slot.block.load(std::memory_order_acquire) : nullptr;
  }

  /// Takes out every block that `belongs` says yes to.
  std::vector<Block*> extract(const std::function<bool(const Block&)>& belongs);

  /// What claim() found at an address.
  enum class Claim {
    claimed,   ///< the block was live and is retired now
    missing,   ///< no block of ours begins there
    not_live,  ///< the program has freed it already
    unusable,  ///< its context has a sticky error; nothing has changed
  };

  /// Takes a live block of ours from the program: live -> retired, for exactly one of several
  /// threads that free the same address.
  [[gnu::always_inline]] Claim claim(CUdeviceptr address, Block** block) {
    Block* found = find(address);
    if (found == nullptr) return Claim::missing;
    // A block that leaves the map meanwhile can be another one by the time of the claim: then its
    // word has changed, and the claim fails.
    const std::uint64_t word = found->state.word();
    if (found->address != address || found->source == BlockSource::passed_through) {
      return Claim::missing;
    }
    *block = found;
    if (!found->context->usable()) return Claim::unusable;
    if (BlockStateCell::state_of(word) != BlockState::live) return Claim::not_live;
    return found->state.claim(word) ? Claim::claimed : Claim::not_live;
  }

  /// Visits every block; `visit` must not call back into the map.
  void for_each(const std::function<void(const Block&)>& visit) const;

 private:
  // Open addressing. A key, once written, stays; its block may go and another come. A table that
  // has been replaced is kept, and may be used again: a thread that still reads it notices.
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
    const unsigned shift;  ///< of a hash, to an index
    const std::size_t mask;
    const std::unique_ptr<Slot[]> slots;
    std::size_t keys = 0;
  };
  // Addresses are multiples of 512 and large ones of 2 MiB: multiplying mixes the upper bits in.
  static std::size_t first_index(const Table& table, CUdeviceptr address) {
    return static_cast<std::size_t>(((address >> 9) * 0x9e3779b97f4a7c15ull) >> table.shift);
  }
  // The slot with this key, or the empty one where it would go. There always is an empty one.
  static Slot* slot_of(const Table& table, CUdeviceptr address) {
    for (std::size_t index = first_index(table, address);; index = (index + 1) & table.mask) {
      Slot& slot = table.slots[index];
      const CUdeviceptr key = slot.key.load(std::memory_order_acquire);
      if (key == address || key == 0) return &slot;
    }
  }
  // The reads of the table come before this one.
  bool is_replaced_since(std::uint64_t generation) const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return generation_.load(std::memory_order_relaxed) != generation;
  }
  void grow_locked();
  Table* spare_table_locked(unsigned log2);

  std::atomic<Table*> table_;
  std::atomic<std::uint64_t> generation_{0};
  std::vector<std::unique_ptr<Table>> tables_;
  mutable std::mutex mutex_;
};

}  // namespace cupool::core
