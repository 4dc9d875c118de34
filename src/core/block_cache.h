// Quiet blocks of one context, by size class: what the next allocation is served from. Everything
// in here has been proven unused by the GPU (I1), so a block is handed out without a further look.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>

#include "core/block.h"
#include "core/size_class.h"

namespace cupool::core {

/// Thread-safe; one lock, held for list operations only.
class BlockCache {
 public:
  /// A block for a request that needs `capacity` bytes, or null. Small: of exactly that class.
  /// Large: the best fit, at most an eighth larger than needed.
  Block* take(std::uint64_t capacity);

  /// Takes up to `most` further blocks of exactly `capacity` bytes.
  BlockList take_more(std::uint64_t capacity, std::size_t most);

  /// Adds quiet blocks.
  void put(BlockList& quiet);

  /// Takes out blocks that should go back to the driver before it grows by `capacity`: one that the
  /// request fits into if there is one, else other idle blocks of about that total.
  BlockList evict_for(std::uint64_t capacity);

  /// Takes out blocks, largest first, until at most `keep_bytes` are left.
  BlockList evict_to(std::uint64_t keep_bytes);

  std::uint64_t bytes() const;

 private:
  using LargeBlocks = std::multimap<std::uint64_t, Block*>;
  void evict_large(LargeBlocks::iterator which, BlockList* evicted);
  void evict_small(std::uint64_t target_bytes, BlockList* evicted);

  mutable std::mutex mutex_;
  std::array<BlockList, kSmallClasses> small_;
  LargeBlocks large_;
  std::uint64_t small_bytes_ = 0;
  std::uint64_t large_bytes_ = 0;
};

}  // namespace cupool::core
