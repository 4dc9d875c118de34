// Quiet blocks of one context, by size class: what the next allocation is served from. Everything
// in here has been proven unused by the GPU (I1), so a block is handed out without a further look.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "core/block.h"
#include "core/chain_list.h"
#include "core/shared_mutex.h"
#include "core/size_class.h"

namespace cupool::core {

/// Thread-safe; one lock, held for list operations only.
class BlockCache {
 public:
  /// What a thread gives or takes as a whole.
  static constexpr std::size_t kLongestChain = 128;
  static constexpr std::uint64_t kMostChainBytes = 8ull << 20;

  /// A block for a request that needs `capacity` bytes, or null. Small: of exactly that class.
  /// Large: the best fit, at most an eighth larger than needed.
  Block* take(std::uint64_t capacity) {
    BlockList none;
    return take(capacity, 0, 0, &none);
  }

  /// The same, with up to `most` further blocks of the same capacity, `most_bytes` in all with it.
  Block* take(std::uint64_t capacity, std::size_t most, std::uint64_t most_bytes, BlockList* more);

  /// Whether take() could find one. One load.
  bool may_have(std::uint64_t capacity) const {
    return is_large(capacity) ? large_bytes_ != 0
                              : has_small_[small_class(capacity)].load(std::memory_order_relaxed);
  }

  /// Adds quiet blocks. Those of one capacity had better follow each other.
  void put(BlockList& quiet);

  /// Takes out blocks that should go back to the driver before it grows by `capacity`: one that the
  /// request fits into if there is one, else other idle blocks of about that total, else half of
  /// those of the other kind (small, large).
  BlockList evict_for(std::uint64_t capacity);

  /// Takes out blocks, largest first, until at most `keep_bytes` are left.
  BlockList evict_to(std::uint64_t keep_bytes);

  /// Forgets everything: the context is gone.
  void abandon();

  /// Ends a step of decay.
  void end_decay_step();

  /// Takes out blocks, until they have `most_bytes` or more, that nobody has needed for the last
  /// kDecaySteps steps: of each class as many as it has had idle all the time.
  BlockList evict_unneeded(std::uint64_t most_bytes);
  static constexpr std::size_t kDecaySteps = 4;

  std::uint64_t bytes() const { return small_bytes_ + large_bytes_; }

 private:
  // The fewest idle blocks that a class has had in each of the last steps.
  using Fewest = std::array<std::uint32_t, kDecaySteps>;
  struct Large {
    BlockList blocks;
    Fewest fewest{};
  };
  using LargeBlocks = std::map<std::uint64_t, Large>;  ///< by capacity; none is empty
  void note(std::size_t count, Fewest& fewest) const;
  void take_small(std::size_t index, std::size_t most, BlockList* taken);
  Block* pop_small(std::size_t index);
  Block* pop_large(LargeBlocks::iterator which);
  void evict_largest(BlockList* evicted) { evicted->push(pop_large(std::prev(large_.end()))); }
  static std::size_t unneeded(const Fewest& fewest);
  static void forget(Fewest& fewest, std::size_t count);
  void evict_half_of_small(BlockList* evicted);
  void evict_small(std::uint64_t target_bytes, BlockList* evicted);

  mutable SharedMutex mutex_;
  std::size_t decay_step_ = 0;
  // Contexts that come and go leave their caches behind: these are made by the first small block
  // and the first step of decay, and end with the context.
  std::unique_ptr<std::array<ChainList, kSmallClasses>> small_;
  std::unique_ptr<std::array<Fewest, kSmallClasses>> small_fewest_;
  LargeBlocks large_;
  // Written under the lock.
  std::array<std::atomic<bool>, kSmallClasses> has_small_{};
  Relaxed<std::uint64_t> small_bytes_;
  Relaxed<std::uint64_t> large_bytes_;
};

}  // namespace cupool::core
