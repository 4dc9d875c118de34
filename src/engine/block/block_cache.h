// SPDX-License-Identifier: Apache-2.0
// The shared cache of a context: cached blocks by size class. The GPU is proven to use none of them
// (I1), so a block is popped without a further check.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "engine/block/block.h"
#include "engine/block/chain_list.h"
#include "engine/block/shared_mutex.h"
#include "engine/block/size_class.h"

namespace cupool::engine {

/// Thread-safe. Its only lock is held for list operations only.
class BlockCache {
 public:
  /// Blocks that a thread caches or pops as a whole.
  static constexpr std::size_t kLongestChain = 128;
  static constexpr std::uint64_t kMostChainBytes = 8ull << 20;

  /// Pops a block for a request of `capacity` bytes, or returns null. Small blocks: of exactly this
  /// class. Large blocks: the best fit, at most an eighth larger.
  Block* pop(std::uint64_t capacity) {
    BlockList none;
    return pop(capacity, 0, 0, &none);
  }

  /// As pop(capacity), with up to `most` further blocks of this capacity, `most_bytes` in all.
  Block* pop(std::uint64_t capacity, std::size_t most, std::uint64_t most_bytes, BlockList* more);

  /// Whether pop() may find a block. One load.
  bool may_have(std::uint64_t capacity) const {
    return is_large(capacity) ? large_bytes_ != 0
                              : has_small_[small_class(capacity)].load(std::memory_order_relaxed);
  }

  /// Caches blocks. Blocks of one capacity should be adjacent in the list.
  void cache(BlockList& blocks);

  /// Takes out blocks to release before fresh memory of `capacity` is taken: one block large enough
  /// for the request if there is one; else other idle blocks of about that total; else half of the
  /// blocks of the other kind (small, large).
  BlockList evict_for(std::uint64_t capacity);

  /// Takes out blocks, largest first, until at most `keep_bytes` are left.
  BlockList evict_to(std::uint64_t keep_bytes);

  /// Drops all blocks, because the context is gone.
  void abandon();

  /// Ends a step of decay.
  void end_decay_step();

  /// Takes out blocks not needed for the last kDecaySteps steps, up to the block that reaches
  /// `most_bytes`: of each class, the lowest count of idle blocks during these steps.
  BlockList evict_unneeded(std::uint64_t most_bytes);
  static constexpr std::size_t kDecaySteps = 4;

  std::uint64_t bytes() const { return small_bytes_ + large_bytes_; }

 private:
  // The lowest count of idle blocks of a class, in each of the last steps.
  using Fewest = std::array<std::uint32_t, kDecaySteps>;
  struct Large {
    BlockList blocks;
    Fewest fewest{};
  };
  using LargeBlocks = std::map<std::uint64_t, Large>;  ///< by capacity; no entry is empty
  void note(std::size_t count, Fewest& fewest) const;
  void pop_small(std::size_t index, std::size_t most, BlockList* popped);
  Block* pop_small(std::size_t index);
  Block* pop_large(LargeBlocks::iterator which);
  void evict_largest(BlockList* evicted) { evicted->push(pop_large(std::prev(large_.end()))); }
  static std::size_t unneeded(const Fewest& fewest);
  static void forget(Fewest& fewest, std::size_t count);
  void evict_half_of_small(BlockList* evicted);
  void leave_unlisted(BlockList& blocks);
  void evict_small(std::uint64_t target_bytes, BlockList* evicted);

  mutable SharedMutex<util::LockRank::block_cache> mutex_;
  std::size_t decay_step_ = 0;
  // Allocated by the first small block and the first step of decay, and freed when the context
  // ends, because this object outlives the context.
  std::unique_ptr<std::array<ChainList, kSmallClasses>> small_;
  std::unique_ptr<std::array<Fewest, kSmallClasses>> small_fewest_;
  LargeBlocks large_;
  BlockList unlisted_;  ///< for want of host memory; the next blocks take them along
  // Written under the lock.
  std::array<std::atomic<bool>, kSmallClasses> has_small_{};
  std::atomic<bool> has_unlisted_{false};
  Relaxed<std::uint64_t> small_bytes_;
  Relaxed<std::uint64_t> large_bytes_;
};

}  // namespace cupool::engine
