// What a thread keeps to itself in a context, so that most allocations and frees meet no other
// thread: quiet blocks to hand out, freed blocks that wait for their fence, and what has happened
// since the statistics were last told.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "core/block.h"
#include "core/size_class.h"
#include "stats/device_stats.h"
#include "stats/thread_figures.h"

namespace cupool::core {

class Context;

struct TallyFigures {
  std::uint64_t mallocs = 0;
  std::uint64_t malloc_bytes = 0;
  std::uint64_t frees = 0;
  std::uint64_t free_bytes = 0;
  std::int64_t application = 0;  ///< requested bytes that became the program's, less those freed
  std::int64_t application_high = 0;  ///< the most that this has been
  std::int64_t rounding = 0;
  std::int64_t cached = 0;
  std::int64_t retired = 0;
};

/// Figures of a thread that the statistics do not know yet.
struct Tally : TallyFigures {
  stats::SizeTally sizes;
  stats::ThreadFigures* owner = nullptr;  ///< whose figures these are; stays

  /// Adds all to `stats` and begins anew.
  void fold(stats::DeviceStats& stats);
};

/// Of one thread in one context. The thread takes the lock for each operation, which nobody else
/// wants but to drain it: when memory is short, the context is synchronised or gone, the thread
/// ends, a report is written. Nothing is called under the lock.
class alignas(128) ThreadCache {
 public:
  explicit ThreadCache(Context& context) : context_(context) {}

  class Guard {
   public:
    explicit Guard(ThreadCache& cache) : cache_(cache) {
      if (cache_.locked_.exchange(true, std::memory_order_acquire)) cache_.wait_for_lock();
    }
    ~Guard() { cache_.locked_.store(false, std::memory_order_release); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    ThreadCache& cache_;
  };

  Context& context() { return context_; }

  // Under the lock:

  /// A quiet block for a request that needs `capacity` bytes, or null.
  Block* take(std::uint64_t capacity);
  /// Keeps quiet blocks, up to `most_bytes` in all; what is beyond stays in `quiet`.
  void keep(BlockList& quiet, std::uint64_t most_bytes);
  /// Keeps a block that the program has freed until its fence is recorded. True: that is due.
  bool retire(Block* block, std::uint64_t most_bytes) {
    batch_.push(block);
    return batch_.count >= target_ || batch_.bytes >= most_bytes;
  }
  /// The batch, to be fenced. Batches begin small, so that a program with few blocks gets them back
  /// soon, and double up to kLargestBatch, so that a fence costs little where there are many.
  BlockList take_batch();
  /// Whether the batch is due by its number of blocks, and how many that are.
  bool is_full() const { return batch_.count >= target_; }
  std::size_t target() const { return target_; }
  /// Whose figures the tally holds from now on.
  void set_owner(stats::ThreadFigures& owner) {
    const Guard guard(*this);
    tally.owner = &owner;
  }
  /// All quiet blocks.
  BlockList drain();

  Tally tally;

  // By its thread, without the lock:

  /// Bytes that wait for a fence.
  std::uint64_t batch_bytes() {
    const Guard guard(*this);
    return batch_.bytes;
  }
  /// Blocks of a kind that it is worth taking over at once.
  std::size_t refill() {
    const Guard guard(*this);
    return target_ / 2;
  }

 private:
  static constexpr std::size_t kLargestBatch = 128;
  static constexpr std::size_t kFirstBatch = 2;
  static constexpr std::size_t kLargeSlots = 32;

  void wait_for_lock();

  std::atomic<bool> locked_{false};
  Context& context_;
  std::size_t target_ = kFirstBatch;
  BlockList batch_;
  std::uint64_t quiet_bytes_ = 0;
  std::array<Block*, kLargeSlots> large_{};
  std::array<BlockList, kSmallClasses> small_{};
};

}  // namespace cupool::core
