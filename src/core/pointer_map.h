// From a device address to its Block: how a free finds out whose pointer it was given. Holds every
// block from its allocation by the backend until it goes back there, whatever its state.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/block.h"

namespace cupool::core {

/// Thread-safe; each operation takes one shard's lock and calls nothing foreign under it.
class PointerMap {
 public:
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
  static constexpr std::size_t kShards = 64;
  struct alignas(64) Shard {
    mutable std::mutex mutex;
    std::unordered_map<CUdeviceptr, Block*> blocks;
  };
  static std::size_t shard_of(CUdeviceptr address) {
    // Addresses are multiples of 512 and large ones of 2 MiB: mix the upper bits in.
    const std::uint64_t key = (address >> 9) ^ (address >> 21);
    return static_cast<std::size_t>((key * 0x9e3779b97f4a7c15ull) >> 58);
  }
  std::array<Shard, kShards> shards_;
};

}  // namespace cupool::core
