// SPDX-License-Identifier: Apache-2.0
// Stream-ordered blocks that the program has freed, by the stream of the free. That stream may have
// them at once, since its own order puts the work of the next owner behind the work of the last
// one. Any other stream of the context only once the epoch that was open at the free is complete.
//
// Knows nothing of the driver, but for a query that it is given. Read with docs/design.md, section
// Stream-ordered memory.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "cuda/api.h"
#include "engine/async/stream_class.h"
#include "engine/block/block.h"
#include "engine/block/shared_mutex.h"
#include "engine/reclaim/epoch_number.h"
#include "stats/device_stats.h"
#include "util/lock_order.h"

namespace cupool::engine {

/// Number of a cache's present use by a stream. Never reused in the process; 0: none.
using StreamUseNumber = std::uint64_t;

/// A non-blocking stream, as long as its context lives; or all streams of it that are gone, in one
/// of two names.
struct StreamName {
  // Handles of default streams, which have no blocks.
  static inline CUstream const kGone = nullptr;                   ///< some perhaps with work left
  static inline CUstream const kGoneWhenDone = CU_STREAM_LEGACY;  ///< without any

  const Context* context = nullptr;
  std::uint64_t life = 0;  ///< of the context
  CUstream stream = kGone;

  bool is_gone() const { return stream == kGone || stream == kGoneWhenDone; }
  bool operator==(const StreamName& other) const {
    return context == other.context && life == other.life && stream == other.stream;
  }
};

/// The blocks of one stream. Never destroyed before its StreamCaches, but used by one stream after
/// another: whoever looked it up earlier has another number.
class alignas(128) StreamCache {
 public:
  /// Address of a block that fits `requested`, whose stream_capacity_for() is `wanted`, live from
  /// now on. 0: none, or the cache is another stream's by now.
  CUdeviceptr pop(StreamUseNumber use, std::uint64_t wanted, std::uint64_t requested) {
    const std::lock_guard lock(mutex_);
    if (use_ != use) return 0;
    if (latest_ != nullptr && latest_->capacity == wanted) {
      Block& block = *latest_;
      latest_ = nullptr;
      return hand_out(block, requested);
    }
    settle();
    Block* const block = find_fitting(wanted, requested);
    if (block == nullptr) return 0;
    unlink(*block);
    return hand_out(*block, requested);
  }

  enum class Taken {
    yes,
    full,  ///< its allotment is used up: the block stays the caller's
    gone   ///< the cache is another stream's by now: likewise
  };
  /// Takes in a claimed block, freed while `open` was the open epoch.
  Taken push(StreamUseNumber use, Block& block, EpochNumber open) {
    const std::lock_guard lock(mutex_);
    if (use_ != use) return Taken::gone;
    if (bytes() + block.capacity > allotted_) return Taken::full;
    block.lane_epoch = value_of(open);
    newest_free_ = std::max(newest_free_, value_of(open));
    block.idle_since = step_;
    ++frees_;
    settle();
    latest_ = &block;
    unused_ += static_cast<std::int64_t>(stream_used(block.requested, block.capacity));
    set_bytes(bytes() + block.capacity);
    used_step_ = step_;
    return Taken::yes;
  }

 private:
  friend class StreamCaches;

  static constexpr unsigned kLongestSearch = 8;

  // Newest first: the newest block is the warmest one, and the oldest the first to be complete.
  struct List {
    Block* newest = nullptr;
    Block* oldest = nullptr;
  };

  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  void set_bytes(std::uint64_t bytes) { bytes_.store(bytes, std::memory_order_relaxed); }
  Block* find_fitting(std::uint64_t wanted, std::uint64_t requested) const;
  Block* find_complete(std::uint64_t wanted, std::uint64_t requested, EpochNumber complete,
                       bool* pending) const;
  CUdeviceptr hand_out(Block& block, std::uint64_t requested) {
    ++hits_;
    leaves(block);
    block.requested = requested;
    unused_ -= static_cast<std::int64_t>(stream_used(requested, block.capacity));
    const CUdeviceptr address = block.address;
    block.state.store(BlockState::live, std::memory_order_release);
    return address;
  }
  /// Puts the latest block into its list. Before whatever looks at the lists but a hit.
  void settle() {
    if (latest_ == nullptr) return;
    link(*latest_);
    latest_ = nullptr;
  }
  void link(Block& block);
  void unlink(Block& block);
  void put(Block& block);
  void take_out(Block& block);
  /// A block is in no list any more.
  void leaves(const Block& block) {
    set_bytes(bytes() - block.capacity);
    used_step_ = step_;
  }

  util::Ranked<util::LockRank::stream_cache, SpinLock> mutex_;
  StreamUseNumber use_ = 0;
  std::atomic<std::uint64_t> bytes_{0};  ///< written under the lock
  std::uint64_t allotted_ = 0;           ///< of the limit
  std::uint64_t hits_ = 0;               ///< not yet counted in the statistics
  std::uint64_t frees_ = 0;
  std::int64_t unused_ = 0;        ///< more than the device's statistics have
  std::uint64_t newest_free_ = 0;  ///< no block of it was freed in a later epoch
  std::uint32_t step_ = 0;         ///< of decay
  std::uint32_t used_step_ = 0;    ///< the latest one in which it had a block
  StreamName name_;                ///< written under both locks; without a use: no context's
  stats::DeviceStats* stats_ = nullptr;
  Block* latest_ = nullptr;  ///< not yet in a list: what is freed last is mostly handed out next
  std::array<List, kStreamClasses> lists_;
};

/// All caches of the process. Thread-safe.
class StreamCaches {
 public:
  StreamCaches() = default;
  StreamCaches(const StreamCaches&) = delete;
  StreamCaches& operator=(const StreamCaches&) = delete;
  ~StreamCaches();

  static constexpr std::size_t kMostStreams = 256;
  static constexpr std::uint32_t kDecaySteps = 4;

  /// A cache and its use by one stream.
  struct Place {
    StreamCache* cache = nullptr;
    StreamUseNumber use = 0;
  };
  /// The cache that a stream has, if any.
  Place find(const StreamName& name);
  /// The cache of a stream, made once it is needed. No cache: too many streams, or no host memory.
  Place find_or_add(const StreamName& name, stats::DeviceStats& stats);
  /// Allots a cache room for `bytes` more. False: the limit is reached.
  bool allot(const Place& place, std::uint64_t bytes);

  /// As StreamCache::pop(), from all streams of the context, with blocks freed up to the epoch
  /// `complete`. Sets `*pending` if only a later fence makes one free.
  CUdeviceptr pop_complete(const Context* context, std::uint64_t life, std::uint64_t wanted,
                           std::uint64_t requested, EpochNumber complete, bool* pending);

  /// Whether a stream ever had a cache, as far as the calling thread may know. One load.
  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }
  /// The stream, which is no default one, is about to be destroyed: what it has freed is no
  /// stream's any more, but any stream's at once if it has nothing left to do. `query` is the
  /// driver's; null: not to be asked.
  void stream_ends(CUstream stream, CUresult (*query)(CUstream) = nullptr);
  /// Takes all blocks of `context` out, in whatever life; its streams have no caches any more.
  BlockList context_ends(const Context* context);

  /// Takes blocks of `context` out that were freed up to the epoch `up_to`, up to the one that
  /// reaches `most_bytes`: all of them, or those that were idle for kDecaySteps steps. That epoch
  /// is complete; or it is closed, and only streams count that have nothing left to do: `query` is
  /// the driver's, asked of each. None is destroyed meanwhile.
  enum class Which { all, unneeded };
  BlockList take(const Context* context, EpochNumber up_to, Which which, std::uint64_t most_bytes,
                 CUresult (*query)(CUstream) = nullptr);
  /// Takes all blocks out that the place's stream has freed.
  BlockList take_of(const Place& place);
  /// Puts blocks back which the driver did not take.
  void put_back(const Context* context, std::uint64_t life, stats::DeviceStats& stats,
                BlockList& blocks);
  /// Takes one block out whose state was `word`. False: it is in no cache. Its record may be
  /// another block's by now.
  bool take(Block& block, std::uint64_t word);

  /// A step of decay is over. Caches that were empty for kDecaySteps steps are ended.
  void end_decay_step();

  void set_limit(std::uint64_t bytes) { limit_.store(bytes, std::memory_order_relaxed); }
  /// What is idle of a context (null: of all).
  struct Idle {
    std::uint64_t bytes = 0;
    EpochNumber freed_up_to = kNoEpoch;  ///< of a context: no block was freed in a later epoch
  };
  Idle idle(const Context* context = nullptr);
  /// Adds what the caches have counted to the statistics of their devices.
  void fold();

 private:
  template <typename Visit>
  void each(const Visit& visit);
  StreamCache* find_locked(const StreamName& name);
  StreamCache* unused_locked();
  StreamCache* give_up_a_stream_locked(const Context* context, std::uint64_t life);
  Place add_locked(const StreamName& name, stats::DeviceStats& stats);
  static void count_locked(StreamCache& cache);
  static void end_locked(StreamCache& cache);
  static void complete_locked(StreamCache& cache);
  static Block* oldest_due(const StreamCache& cache, std::size_t list, EpochNumber up_to,
                           Which which);
  void give_up_locked(StreamCache& cache, std::uint64_t bytes);
  bool reserve(std::uint64_t bytes);

  /// Guards which stream has which cache. A cache's own lock is taken under it.
  util::Ranked<util::LockRank::stream_caches> mutex_;
  std::array<std::atomic<StreamCache*>, kMostStreams> caches_{};
  std::atomic<std::size_t> count_{0};
  std::atomic<std::uint64_t> limit_{0};
  std::atomic<std::uint64_t> reserved_{0};  ///< the sum of all allotments
  std::atomic<std::uint32_t> step_{0};
};

}  // namespace cupool::engine
