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

namespace cupool::core {

/// Thread-safe. Looking up takes no lock and writes nothing; adding and taking out, which go with a
/// call of the backend, take one. Calls nothing foreign under it but the visitors.
class PointerMap {
 public:
  PointerMap();

  /// Adds a block under its address; one that stood there (freed behind our back) is replaced and
  /// returned.
  Block* insert(Block* block);

  /// Takes the block out. False if it was not there any more.
  bool erase(const Block* block);

  /// The block that begins at `address`, or null.
  Block* find(CUdeviceptr address) const;

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
  Claim claim(CUdeviceptr address, Block** block);

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
        : log2(size_log2), slots(new Slot[std::size_t{1} << size_log2]) {}
    const unsigned log2;
    const std::unique_ptr<Slot[]> slots;
    std::size_t keys = 0;
  };
  static Slot* slot_of(const Table& table, CUdeviceptr address);
  void grow_locked();
  Table* spare_table_locked(unsigned log2);

  std::atomic<Table*> table_;
  std::atomic<std::uint64_t> generation_{0};
  std::vector<std::unique_ptr<Table>> tables_;
  mutable std::mutex mutex_;
};

}  // namespace cupool::core
