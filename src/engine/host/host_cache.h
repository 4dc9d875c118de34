// SPDX-License-Identifier: Apache-2.0
// Page-locked blocks that the program has freed: idle ones, ready for the next allocation, and
// retired ones, which the GPU may still use until their epoch is complete. In shards, one for each
// thread as long as there are few, so that threads do not meet.
//
// Knows nothing of the driver. The next owner of an idle block is the host, which writes at once:
// who caches a block has seen the GPU's work complete, not only ordered.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "engine/block/block.h"
#include "engine/block/shared_mutex.h"
#include "engine/host/host_class.h"
#include "engine/host/host_shards.h"
#include "engine/reclaim/epoch_number.h"
#include "util/lock_order.h"

namespace cupool::engine {

/// One per process. Thread-safe.
class HostCache {
 public:
  HostCache() = default;
  HostCache(const HostCache&) = delete;
  HostCache& operator=(const HostCache&) = delete;
  ~HostCache();

  /// The calls that a shard has counted since the last fold().
  struct Counts {
    std::uint64_t hits = 0;
    std::uint64_t frees = 0;
  };

  /// Memory of a block for `wanted` bytes, a result of host_capacity_for(), from the calling
  /// thread's shard of `node`, live from now on for `requested` bytes. Retired blocks of epochs up
  /// to `complete` are idle. Null: none. The address was read under the lock: the record may be
  /// another block's as soon as its context ends.
  void* pop(std::uint64_t wanted, std::uint64_t requested, unsigned kind, unsigned node,
            EpochNumber complete);
  /// As pop(), from the shards of other threads, first of those that have ended. Null: `idle` is
  /// the bytes that the shards had when they were looked into.
  void* pop_others(std::uint64_t wanted, std::uint64_t requested, unsigned kind, unsigned node,
                   EpochNumber complete, std::uint64_t* idle);

  /// Result of a cache() or retire().
  enum class Taken {
    yes,
    full,  ///< no room below the limit, or no host memory for the lists: the block is the caller's
    gone,  ///< its context has ended: the block is nobody's
  };
  /// Takes in a claimed block that nothing uses any more. `is_alive()`, called under the lock:
  /// whether the block's context has not ended since it was claimed.
  template <typename IsAlive>
  Taken cache(Block& block, const IsAlive& is_alive) {
    return take_in(block, is_alive, [&](Shard& shard) { put_idle(shard, block); });
  }
  /// Takes in a claimed block that the GPU may use until `epoch` is complete.
  template <typename IsAlive>
  Taken retire(Block& block, EpochNumber epoch, const IsAlive& is_alive) {
    block.lane_epoch = value_of(epoch);
    return take_in(block, is_alive, [&](Shard& shard) { put_retired(shard, block); });
  }

  /// Bytes up to which blocks are taken in.
  void set_limit(std::uint64_t bytes) { limit_.store(bytes, std::memory_order_relaxed); }
  std::uint64_t limit() const { return limit_.load(std::memory_order_relaxed); }

  std::uint64_t bytes() const;
  std::uint64_t retired_bytes() const { return retired_bytes_.load(std::memory_order_relaxed); }
  bool any() const { return bytes() != 0; }

  /// Retired blocks of epochs up to `complete` become idle, in all shards.
  void reclaim(EpochNumber complete);

  enum class Which { all, idle, older, unneeded };
  /// Takes blocks out, up to the one that reaches `most_bytes`: all, those that the GPU does not
  /// use, or of these the ones idle since before the last two turns, or for kDecaySteps steps.
  BlockList take(Which which, std::uint64_t most_bytes = ~std::uint64_t{0});
  /// Takes one block out, whatever it waits for, whose state was `word`. False: it is not in the
  /// cache. Its record may be another block's by now.
  bool take(const Block& block, std::uint64_t word);
  /// A step of decay ends.
  void end_decay_step() { step_.fetch_add(1, std::memory_order_relaxed); }
  static constexpr std::uint32_t kDecaySteps = 4;
  /// A turn ends: blocks that threads use again and again are newer than it from now on.
  void end_turn() { turn_.fetch_add(1, std::memory_order_relaxed); }

  /// Adds up and clears what the shards have counted.
  Counts take_counts();

 private:
  static constexpr unsigned kLongestSearch = 8;  ///< blocks of a class that do not fit

  struct List {
    Block* newest = nullptr;
    Block* oldest = nullptr;
  };
  struct Lists {
    std::array<List, kHostClasses> of_class;
  };
  struct alignas(128) Shard {
    util::Ranked<util::LockRank::host_cache, SpinLock> mutex;
    std::atomic<std::uint64_t> bytes{0};  ///< idle and retired; written under the lock
    std::uint64_t allotted = 0;           ///< of the limit
    Counts counts;
    BlockList retired;                      ///< oldest first
    std::array<Lists*, kHostKinds> idle{};  ///< made once needed; destroyed with the cache
  };

  Shard& own_shard(unsigned node) { return shards_[node % kHostNodes][HostShards::own()]; }
  template <typename Visit>
  void each_shard(const Visit& visit);
  void* pop_in(Shard& shard, std::uint64_t wanted, std::uint64_t requested, unsigned kind,
               EpochNumber complete);
  template <typename IsAlive, typename Put>
  Taken take_in(Block& block, const IsAlive& is_alive, const Put& put);
  bool allot(Shard& shard, std::uint64_t bytes);
  bool reserve(std::uint64_t bytes);
  void give_up_unused_allotments();
  static Lists* lists_of(Shard& shard, unsigned kind);
  void put_idle(Shard& shard, Block& block);
  bool is_due(Which which, const Block& idle) const;
  void put_retired(Shard& shard, Block& block) {
    retired_bytes_.fetch_add(block.capacity, std::memory_order_relaxed);
    shard.retired.push(&block);
  }
  static void unlink(List& list, Block& block);
  void reclaim_in(Shard& shard, EpochNumber complete);
  static void shrink(Shard& shard, std::uint64_t bytes) {
    shard.bytes.store(shard.bytes.load(std::memory_order_relaxed) - bytes,
                      std::memory_order_relaxed);
  }

  std::array<std::array<Shard, kHostShards>, kHostNodes> shards_;
  alignas(128) std::atomic<std::uint64_t> limit_{0};
  std::atomic<std::uint32_t> step_{0};
  std::atomic<std::uint32_t> turn_{0};
  alignas(128) std::atomic<std::uint64_t> reserved_{0};  ///< the sum of all allotments
  std::atomic<std::uint64_t> retired_bytes_{0};
};

template <typename IsAlive, typename Put>
HostCache::Taken HostCache::take_in(Block& block, const IsAlive& is_alive, const Put& put) {
  Shard& shard = own_shard(host_node_of(block.kind));
  for (bool allotted = false;; allotted = true) {
    {
      const std::lock_guard lock(shard.mutex);
      if (!is_alive()) return Taken::gone;
      const std::uint64_t bytes = shard.bytes.load(std::memory_order_relaxed) + block.capacity;
      if (bytes <= shard.allotted && lists_of(shard, host_kind_of(block.kind)) != nullptr) {
        shard.bytes.store(bytes, std::memory_order_relaxed);
        ++shard.counts.frees;
        put(shard);
        return Taken::yes;
      }
    }
    if (allotted || !allot(shard, block.capacity)) return Taken::full;
  }
}

}  // namespace cupool::engine
