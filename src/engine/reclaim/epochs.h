// SPDX-License-Identifier: Apache-2.0
// The open epoch of a context, and its newest complete epoch. Every free uses this part, without
// the lock of the ordering.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine/block/block.h"
#include "engine/block/shared_mutex.h"
#include "engine/reclaim/open_epoch.h"
#include "engine/reclaim/stalls_avoided.h"

namespace cupool::engine {

class ClosedEpochs;

/// One per context. Public functions are thread-safe.
// Written and read-only members apart. NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
class Epochs {
 public:
  /// Puts a freed block into the open epoch. Returns the epoch's number.
  EpochNumber retire(Block* block);

  /// Adds a batch of `frees` blocks with `bytes` in all to the open epoch; the blocks stay with
  /// their thread. The bytes are pending until the epoch is complete. Returns the epoch's number.
  EpochNumber join(std::uint64_t bytes, std::size_t frees);

  /// The number of the open epoch. A wait for it waits for all work of the context so far.
  EpochNumber open() const { return open_.number(); }
  bool is_open_empty() const { return open_.empty(); }

  /// The newest epoch known to be complete; all older ones are complete too. One load, which orders
  /// the caller's next steps after the GPU's last use of these epochs' blocks.
  EpochNumber complete_up_to() const { return complete_up_to_.load(std::memory_order_acquire); }

  /// Bytes of all retired blocks, including those kept by threads. Two relaxed loads.
  std::uint64_t pending_bytes() const {
    return closed_bytes_.load(std::memory_order_relaxed) + open_.bytes();
  }

  /// Whether the ordering itself has blocks, retired or reclaimed. One relaxed load.
  bool holds_blocks() const { return held_blocks_.load(std::memory_order_relaxed) != 0; }

  /// The newest epoch with frees that left their wait to the program's next message
  /// (engine/serve/messages).
  EpochNumber unwaited() const { return unwaited_.load(std::memory_order_acquire); }
  void set_unwaited(EpochNumber epoch) {
    EpochNumber before = unwaited();
    while (before < epoch &&
           !unwaited_.compare_exchange_weak(before, epoch, std::memory_order_release)) {
    }
  }

  StallsAvoided& stalls_avoided() { return stalls_avoided_; }

 private:
  // Under the ordering's lock:
  friend class ClosedEpochs;

  enum class IfEmpty { close, leave };
  struct Closed {
    OpenEpoch::Closed counts;
    BlockList blocks;  ///< without those kept by threads
  };
  bool close(IfEmpty if_empty, Closed* closed);
  void reopen(Closed& closed);
  void put_back(BlockList& blocks);
  BlockList pop_all();
  void count_held(std::ptrdiff_t blocks);
  void set_complete(EpochNumber up_to);
  void settle(std::uint64_t closed_bytes);
  void abandon();

  SharedSpinLock<util::LockRank::open_epoch>
      open_mutex_;         ///< guards open_blocks_, and joining with some of them
  BlockList open_blocks_;  ///< of the open epoch, without those kept by threads
  // Written by all threads when they flush a batch.
  alignas(128) OpenEpoch open_;
  // Read by all threads when they flush a batch.
  alignas(128) std::atomic<EpochNumber> complete_up_to_{kNoEpoch};
  std::atomic<std::uint64_t> closed_bytes_{0};  ///< pending bytes of closed epochs
  std::atomic<std::size_t> held_blocks_{0};
  std::atomic<EpochNumber> unwaited_{kNoEpoch};
  // Written by frees behind work of their thread.
  alignas(128) StallsAvoided stalls_avoided_;
};

}  // namespace cupool::engine
