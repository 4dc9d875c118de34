// What a thread keeps to itself in a context, so that its allocations and frees meet no other
// thread: quiet blocks to hand out, the batch of blocks that it is freeing, earlier batches whose
// fences are under way, and what has happened since the statistics were last told.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>

#include "core/block.h"
#include "core/block_cache.h"
#include "core/freed_blocks.h"
#include "core/ordering.h"
#include "core/shared_mutex.h"
#include "core/size_class.h"
#include "stats/device_stats.h"
#include "stats/thread_figures.h"
#include "util/mutation.h"

namespace cupool::core {

class Context;

/// What begins anew when the statistics are told.
struct TallyFigures {
  std::uint64_t mallocs = 0;
  std::uint64_t malloc_bytes = 0;     ///< as requested
  std::uint64_t malloc_capacity = 0;  ///< of the same blocks
  std::uint64_t frees = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t free_capacity = 0;
  std::int64_t application_high = 0;  ///< the most that application() has been
  std::int64_t collected = 0;         ///< bytes that were retired and are cached now
};

/// Figures of a thread that the statistics do not know yet.
struct Tally : TallyFigures {
  stats::SizeTally sizes;
  stats::ThreadFigures* owner = nullptr;  ///< whose figures these are; stays
  std::uint64_t told_calls = 0;           ///< that the statistics know; stays

  /// Requested bytes that became the program's, less those freed.
  std::int64_t application() const { return static_cast<std::int64_t>(malloc_bytes - free_bytes); }

  void count_malloc(std::uint64_t bytes, std::uint64_t capacity) {
    ++mallocs;
    malloc_bytes += bytes;
    malloc_capacity += capacity;
    sizes.record(bytes);
    if (application() > application_high) application_high = application();
  }
  void count_free(std::uint64_t bytes, std::uint64_t capacity) {
    ++frees;
    free_bytes += bytes;
    free_capacity += capacity;
  }
  /// Whether the program's bytes have changed by more than `most_bytes`, either way.
  bool is_due(std::int64_t most_bytes) const { return is_due_after(0, most_bytes); }
  /// The same if they change by `bytes` more.
  bool is_due_after(std::int64_t bytes, std::int64_t most_bytes) const {
    return static_cast<std::uint64_t>(application() + bytes + most_bytes) >
           static_cast<std::uint64_t>(2 * most_bytes);
  }
  /// Calls since the cache was made.
  std::uint64_t calls() const { return told_calls + mallocs + frees; }
  /// Whether so much has been counted that the statistics should know.
  bool is_long() const { return mallocs + frees > 4096; }
  /// Adds all to `stats` and begins anew.
  void fold(stats::DeviceStats& stats);
};

/// Of one thread in one context. The thread takes the lock for each operation, which nobody else
/// wants but to drain it: when memory is short, the context is synchronised or gone, the thread
/// ends, a report is written. Nothing is called under the lock but Ordering::join().
class alignas(128) ThreadCache {
 public:
  explicit ThreadCache(Context& context) : context_(context) {}

  using Guard = std::lock_guard<ThreadCache>;
  void lock() { lock_.lock(); }
  bool try_lock() { return lock_.try_lock(); }
  void unlock() { lock_.unlock(); }

  /// How much a thread may have, in bytes unless it says blocks; the same for all threads of a
  /// context.
  struct Limits {
    std::size_t blocks = 512;      ///< of the largest batch
    std::uint64_t batch = 0;       ///< of a batch that is due
    std::uint64_t few = 0;         ///< the same of one of fewer than kFewBlocks
    std::uint64_t quiet = 0;       ///< idle
    std::int64_t tally = 1 << 20;  ///< unknown to the statistics
  };

  Context& context() { return context_; }

  /// Whose figures the tally holds from now on.
  void set_owner(stats::ThreadFigures& owner) {
    const Guard guard(*this);
    tally.owner = &owner;
  }

  // Under the lock:

  /// A quiet block for a request of `bytes`, or null.
  Block* take(std::uint64_t bytes) {
    const std::size_t index = small_class_of_request(bytes);
    return index < kLargeClass ? take_small(index) : take_large(capacity_for(bytes));
  }
  /// The same, and counts it. Null as well where the statistics are to be told.
  [[gnu::always_inline]] Block* take_hot(std::uint64_t bytes) {
    const std::size_t index = small_class_of_request(bytes);
    if (index >= kLargeClass) return take_large_hot(bytes);
    if (small_[index].head == nullptr ||
        tally.is_due_after(static_cast<std::int64_t>(bytes), limits.tally)) {
      return nullptr;
    }
    Block* const block = take_small(index);
    tally.count_malloc(bytes, block->capacity);
    return block;
  }
  /// The same for a large block, or for a request that nothing can serve.
  Block* take_large_hot(std::uint64_t bytes);
  /// Keeps quiet blocks of one capacity, up to limits.quiet in all; what is beyond stays in
  /// `quiet`.
  void keep(BlockList& quiet);
  /// Adds a block that the program has freed to the batch. True: the batch is due.
  bool retire(Block* block) {
    if (CUPOOL_MUTATED("batch-grows-after-fence") && in_flight_count_ != 0) {
      newest_in_flight().blocks.others.push(block);
      return false;
    }
    batch_.push(block);
    return is_due();
  }
  bool is_due() const { return is_due_with(batch_.count(), batch_.bytes()); }
  /// The same for a block that does not make the batch due, and counts it. False: it does, or the
  /// statistics are to be told.
  [[gnu::always_inline]] bool retire_hot(Block* block) {
    const std::uint64_t bytes = block->requested;
    if (is_due_with(batch_.count() + 1, batch_.bytes() + block->capacity) ||
        tally.is_due_after(-static_cast<std::int64_t>(bytes), limits.tally)) {
      return false;
    }
    tally.count_free(bytes, block->capacity);
    retire(block);
    return true;
  }
  /// How many blocks make the batch due, if it is so by their number; else the largest such number.
  /// Batches begin small, so that a program with few blocks gets them back soon, and double up to
  /// limits.blocks, so that a fence costs little where there are many.
  std::size_t target() const { return batch_.count() >= target_ ? target_ : limits.blocks; }
  std::uint64_t batch_bytes() const { return batch_.bytes(); }
  /// The batch joins the open epoch and is in flight from now on.
  void join(Ordering& ordering);
  /// Takes over batches that are quiet, the blocks of one kind as a whole. What the thread should
  /// not keep is added to `surplus`, which counts as retired: what it has no use for, and what
  /// `unfit(block)` names, which answers the same for all of a kind.
  template <typename Unfit>
  void collect(EpochNumber quiet_up_to, BlockList* surplus, const Unfit& unfit);
  /// The next free looks whether too much is pending, though its batch may not be due: an
  /// allocation has had the last one join before it was.
  void expect_free() { due_bytes_ = due_few_bytes_ = 0; }
  bool expects_free() const { return due_bytes_ == 0; }
  /// After a batch was due.
  void renew(const Limits& now) {
    limits = now;
    due_bytes_ = now.batch;
    due_few_bytes_ = now.few;
  }
  /// Which batch the thread is filling: never the same again once it has joined an epoch, or is
  /// the thread's no more. kNoBatch: it is empty.
  using BatchNumber = std::uint64_t;
  static constexpr BatchNumber kNoBatch = 0;
  BatchNumber batch_number() const { return batch_.empty() ? kNoBatch : batch_.takes() + 1; }
  bool is_filling(BatchNumber number) const {
    return number != kNoBatch && number == batch_number();
  }
  /// Takes over that batch, which is quiet, as collect() does.
  template <typename Unfit>
  void collect_batch(BlockList* surplus, const Unfit& unfit) {
    FreedBlocks freed = batch_.take();
    keep_freed(freed, surplus, unfit);
  }
  bool has_in_flight() const { return in_flight_count_ != 0; }
  /// The oldest batch in flight, if there is one.
  bool oldest_is_quiet(EpochNumber quiet_up_to) const { return oldest_in_flight() <= quiet_up_to; }
  /// The epoch of the oldest batch in flight; that of no batch is never quiet.
  EpochNumber oldest_in_flight() const {
    return in_flight_count_ != 0 ? in_flight_[first_in_flight_].epoch : ~EpochNumber{0};
  }
  std::uint64_t waiting_bytes() const { return batch_.bytes() + in_flight_bytes_; }
  /// Whether so many batches' worth waits, in blocks or in bytes, or would with `bytes` more.
  bool waits_for(std::size_t batches, std::uint64_t bytes) const {
    std::size_t blocks = batch_.count();
    for (const InFlight& batch : in_flight_) blocks += batch.blocks.count();
    return blocks >= batches * limits.blocks || waiting_bytes() + bytes > batches * limits.batch;
  }
  /// Whether the thread holds blocks here and has done nothing since this was last asked.
  bool lies_idle() {
    const std::uint64_t before = calls_at_last_look_;
    calls_at_last_look_ = tally.calls();
    return calls_at_last_look_ == before && waiting_bytes() + quiet_bytes_ != 0;
  }

  /// A batch whose fence is under way.
  struct InFlight {
    EpochNumber epoch = 0;
    FreedBlocks blocks;
  };
  static constexpr std::size_t kMostInFlight = 8;
  using AllInFlight = std::array<InFlight, kMostInFlight>;
  /// Everything of these kinds, for somebody else.
  AllInFlight drain_in_flight();
  BlockList drain_quiet();
  /// Forgets everything: the context is gone.
  void abandon();

  Tally tally;
  Limits limits;

  /// Blocks of a kind that it is worth taking over at once: more each time.
  std::size_t refill() {
    refill_ = std::min(2 * refill_, kLargestRefill);
    return refill_;
  }

 private:
  static constexpr std::size_t kFirstBatch = 2;
  static constexpr std::size_t kFewBlocks = 16;    ///< that a fence is much for
  static constexpr std::size_t kQuickBatch = 128;  ///< up to which each full batch doubles it
  static constexpr unsigned kFullBatches = 16;     ///< that double a larger one; chosen
  static constexpr std::size_t kLargestRefill = BlockCache::kLongestChain;
  static constexpr std::size_t kLargeSlots = 48;
  static constexpr std::size_t kLargeClass =
      kSmallClasses - 1;  ///< of 2 MiB, the unit of large ones
  static constexpr unsigned kBatchesOfAPeriod = 8;

  // Last in, first out. With the fewest blocks that it has had in this period: so many the thread
  // did without. Small itself: a context leaves the caches of its threads behind.
  struct SmallList {
    Block* head = nullptr;
    std::uint32_t count = 0;
    std::uint32_t fewest : 30;
    std::uint32_t taken_from : 1;  ///< in this period
    std::uint32_t only_freed : 1;  ///< in the last one: others allocate these
    SmallList() : fewest(0), taken_from(0), only_freed(0) {}
  };

  bool is_due_with(std::size_t count, std::uint64_t bytes) const {
    if (bytes >= due_bytes_ && (count >= kFewBlocks || bytes >= due_few_bytes_)) return true;
    return count >= target_;
  }
  Block* take_small(std::size_t index) {
    SmallList& small = small_[index];
    Block* block = small.head;
    if (block == nullptr) return nullptr;
    small.head = block->next;
    __builtin_prefetch(small.head, 1);  // for the next call; another processor may have it
    if (small.taken_from == 0) small.taken_from = 1;
    if (--small.count < small.fewest) small.fewest = small.count;
    quiet_bytes_ -= block->capacity;
    return block;
  }
  Block* take_large(std::uint64_t capacity);
  bool keep_one(Block* block);
  void keep_chain(SmallList& small, BlockList& blocks);
  bool keep_whole(BlockList& blocks, BlockList* surplus);
  template <typename Unfit>
  void keep_freed(FreedBlocks& freed, BlockList* surplus, const Unfit& unfit);
  void count_quiet(std::uint64_t bytes) { tally.collected += static_cast<std::int64_t>(bytes); }
  void shed(BlockList* surplus);
  InFlight& newest_in_flight() {
    return in_flight_[(first_in_flight_ + in_flight_count_ - 1) % kMostInFlight];
  }

  SpinLock lock_;
  Context& context_;
  std::size_t target_ = kFirstBatch;
  unsigned full_batches_ = 0;  ///< since target_ changed
  std::size_t refill_ = 1;
  std::uint64_t due_bytes_ = 0;      ///< of a batch that is due
  std::uint64_t due_few_bytes_ = 0;  ///< the same of one of few blocks
  std::uint64_t quiet_bytes_ = 0;
  std::uint64_t in_flight_bytes_ = 0;
  std::uint64_t calls_at_last_look_ = 0;
  std::size_t first_in_flight_ = 0;
  std::size_t in_flight_count_ = 0;
  std::size_t large_count_ = 0;
  unsigned batches_ = 0;  ///< of this period
  AllInFlight in_flight_;
  std::array<Block*, kLargeSlots> large_{};
  std::array<std::uint32_t, kLargeSlots> large_units_{};  ///< their capacities, in kLargeUnit
  std::array<SmallList, kSmallClasses> small_{};
  FreedBatch batch_;
};

inline bool ThreadCache::keep_one(Block* block) {
  if (quiet_bytes_ + block->capacity > limits.quiet) return false;
  if (!is_large(block->capacity)) {
    const std::uint8_t kind = block->kind;
    SmallList& small =
        small_[kind != Block::kNoKind ? small_class_of_kind(kind) : small_class(block->capacity)];
    if (small.only_freed) return false;
    block->next = small.head;
    small.head = block;
    ++small.count;
  } else if (large_count_ < kLargeSlots) {
    large_units_[large_count_] = static_cast<std::uint32_t>(block->capacity / kLargeUnit);
    large_[large_count_++] = block;
  } else {
    return false;
  }
  quiet_bytes_ += block->capacity;
  return true;
}

inline void ThreadCache::keep_chain(SmallList& small, BlockList& blocks) {
  blocks.tail->next = small.head;
  small.head = blocks.head;
  small.count += static_cast<std::uint32_t>(blocks.count);
  quiet_bytes_ += blocks.bytes;
  blocks = BlockList{};
}

// Fit small blocks of one kind. False: they are too much.
inline bool ThreadCache::keep_whole(BlockList& blocks, BlockList* surplus) {
  SmallList& small = small_[small_class(blocks.head->capacity)];
  if (small.only_freed) {
    surplus->splice(blocks);
    return true;
  }
  if (quiet_bytes_ + blocks.bytes > limits.quiet) return false;
  count_quiet(blocks.bytes);
  keep_chain(small, blocks);
  return true;
}

template <typename Unfit>
void ThreadCache::keep_freed(FreedBlocks& freed, BlockList* surplus, const Unfit& unfit) {
  const auto keep_each = [&](BlockList& blocks) {
    while (Block* block = blocks.pop()) {
      if (unfit(*block) || !keep_one(block)) {
        surplus->push(block);
      } else {
        count_quiet(block->capacity);
      }
    }
  };
  freed.bytes = 0;
  while (!freed.chains.empty()) {
    BlockList chain = freed.chains.pop();
    if (unfit(*chain.head) || !keep_whole(chain, surplus)) keep_each(chain);
  }
  keep_each(freed.others);
}

template <typename Unfit>
void ThreadCache::collect(EpochNumber quiet_up_to, BlockList* surplus, const Unfit& unfit) {
  while (oldest_is_quiet(quiet_up_to)) {
    FreedBlocks& freed = in_flight_[first_in_flight_].blocks;
    in_flight_bytes_ -= freed.bytes;
    keep_freed(freed, surplus, unfit);
    first_in_flight_ = (first_in_flight_ + 1) % kMostInFlight;
    --in_flight_count_;
  }
  if (batches_ >= kBatchesOfAPeriod) shed(surplus);
}

}  // namespace cupool::core
