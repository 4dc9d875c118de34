// SPDX-License-Identifier: Apache-2.0
// A thread's frees: the batch that it is filling, and earlier batches in flight.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/block/block.h"
#include "engine/block/freed_blocks.h"
#include "engine/reclaim/epoch_number.h"

namespace cupool::engine {

/// Identifies the batch that a thread is filling. The number is not reused after the batch has
/// joined an epoch or has left the thread.
enum class BatchNumber : std::uint64_t {};
/// The number of an empty batch.
constexpr BatchNumber kNoBatch{0};

/// The batch that a thread is filling, and its flush thresholds: until the first renew(), each free
/// reaches them. Not thread-safe.
class FreeBatch {
 public:
  bool empty() const { return blocks_.empty(); }
  std::uint64_t bytes() const { return blocks_.bytes(); }
  std::size_t count() const { return blocks_.count(); }

  [[gnu::always_inline]] void push(Block* block) { blocks_.push(block); }

  bool is_due() const { return is_due_with(count(), bytes()); }
  /// Whether a batch of `count` blocks and `bytes` in all would be flushed.
  bool is_due_with(std::size_t count, std::uint64_t bytes) const {
    if (bytes >= due_bytes_ && (count >= kFewBlocks || bytes >= due_few_bytes_)) return true;
    return count >= due_blocks_;
  }

  /// Has the next free flush, and so check the pending limit: an allocation flushed this batch
  /// early.
  void expect_free() { due_bytes_ = due_few_bytes_ = 0; }
  /// After a flush: sets the thresholds of blocks and of bytes, and the byte threshold of a batch
  /// with few blocks.
  void renew(std::size_t due_blocks, std::uint64_t due_bytes, std::uint64_t due_few_bytes) {
    due_blocks_ = due_blocks;
    due_bytes_ = due_bytes;
    due_few_bytes_ = due_few_bytes;
  }

  BatchNumber number() const { return empty() ? kNoBatch : BatchNumber{blocks_.pops() + 1}; }
  bool is_filling(BatchNumber asked) const { return asked != kNoBatch && asked == number(); }

  /// Takes out all blocks.
  FreedBlocks pop_all() { return blocks_.pop_all(); }

 private:
  static constexpr std::size_t kFewBlocks = 16;  ///< fewer blocks are not worth a fence

  std::size_t due_blocks_ = 0;
  std::uint64_t due_bytes_ = 0;
  std::uint64_t due_few_bytes_ = 0;  ///< byte threshold of a batch with few blocks
  FreedBatch blocks_;
};

/// Flushed batches whose epochs are not known to be complete, oldest first. Not thread-safe.
class BatchesInFlight {
 public:
  struct Batch {
    EpochNumber epoch = kNoEpoch;
    FreedBlocks blocks;
  };
  static constexpr std::size_t kMost = 8;
  using All = std::array<Batch, kMost>;

  bool empty() const { return count_ == 0; }
  std::uint64_t bytes() const { return bytes_; }
  std::size_t blocks() const {
    std::size_t sum = 0;
    for (const Batch& batch : batches_) sum += batch.blocks.count();
    return sum;
  }
  /// The epoch of the oldest batch; kNeverComplete if there is none.
  EpochNumber oldest() const { return empty() ? kNeverComplete : batches_[first_].epoch; }
  /// The newest batch. There must be one.
  Batch& newest() { return batches_[(first_ + count_ - 1) % kMost]; }

  /// Adds a batch of `epoch`. A full queue merges it into the newest batch: a later fence also
  /// covers older batches, so this costs only time.
  void add(EpochNumber epoch, FreedBlocks& blocks) {
    const bool merged = !empty() && (newest().epoch == epoch || count_ == kMost);
    if (!merged) ++count_;
    Batch& batch = newest();
    batch.epoch = epoch;
    bytes_ += blocks.bytes;
    batch.blocks.splice(blocks);
  }

  /// Takes out the oldest batch after `use(blocks)`, which must leave none of its blocks.
  template <typename Use>
  void pop_oldest(const Use& use) {
    FreedBlocks& blocks = batches_[first_].blocks;
    bytes_ -= blocks.bytes;
    use(blocks);
    first_ = (first_ + 1) % kMost;
    --count_;
  }

  /// Takes out all batches.
  All pop_all() {
    const All taken = batches_;
    batches_ = All{};
    bytes_ = 0;
    count_ = 0;
    return taken;
  }

 private:
  std::uint64_t bytes_ = 0;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  All batches_;
};

}  // namespace cupool::engine
