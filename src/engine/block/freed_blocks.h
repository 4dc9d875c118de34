// SPDX-License-Identifier: Apache-2.0
// Blocks that a thread has freed and keeps until a fence. Small blocks are separated by kind, so
// that they can be cached by this thread or another without a check of each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/block/block.h"
#include "engine/block/chain_list.h"
#include "engine/block/size_class.h"

namespace cupool::engine {

/// Blocks that wait for one fence. Not thread-safe.
struct FreedBlocks {
  ChainList chains;         ///< one kind each
  BlockList others;         ///< to be checked individually
  std::uint64_t bytes = 0;  ///< of all blocks

  std::size_t count() const { return chains.count() + others.count; }
  bool empty() const { return chains.empty() && others.empty(); }

  /// Appends all blocks of `other`, which is then empty.
  void splice(FreedBlocks& other) {
    chains.splice(other.chains);
    others.splice(other.others);
    bytes += other.bytes;
    other = FreedBlocks{};
  }

  /// Takes out all blocks as one list, with blocks of one kind adjacent.
  BlockList pop_all() {
    BlockList all;
    while (!chains.empty()) {
      BlockList chain = chains.pop();
      all.splice(chain);
    }
    all.splice(others);
    *this = FreedBlocks{};
    return all;
  }
};

/// A thread's free batch. Kept small, because thread caches may outlive their context. Not
/// thread-safe.
class FreedBatch {
 public:
  bool empty() const { return count_ == 0; }
  std::uint64_t bytes() const { return bytes_; }
  std::size_t count() const { return count_; }
  /// Number of pop_all() calls.
  std::uint64_t pops() const { return pops_; }

  [[gnu::always_inline]] void push(Block* block) {
    bytes_ += block->capacity;
    ++count_;
    const std::uint8_t kind = block->kind;
    if (kind == Block::kNoKind) return others_.push(block);
    Block* const oldest = runs_[small_class_of_kind(kind)];
    if (oldest == nullptr) return begin(block, small_class_of_kind(kind));
    if (oldest->kind != kind) return others_.push(block);  // of the other source
    block->next = oldest->next;
    oldest->next = block;
    ++oldest->chain_length;
  }

  /// Takes out all blocks.
  FreedBlocks pop_all() {
    FreedBlocks popped;
    for (; runs_begun_ != 0; --runs_begun_) {
      Block*& run = runs_[begun_[runs_begun_ - 1]];
      BlockList chain;
      chain.tail = run;
      chain.head = run->next;
      chain.count = run->chain_length;
      chain.bytes = run->chain_length * run->capacity;
      run->next = nullptr;
      run = nullptr;
      popped.chains.push(chain);
    }
    popped.others.splice(others_);
    popped.bytes = bytes_;
    bytes_ = 0;
    count_ = 0;
    ++pops_;
    return popped;
  }

 private:
  // A run of one kind is a ring. The oldest block is known and has the length; its next block is
  // the newest. Last in, first out: the block touched last is popped first.
  void begin(Block* block, std::size_t index) {
    block->next = block;
    block->chain_length = 1;
    runs_[index] = block;
    begun_[runs_begun_++] = static_cast<std::uint8_t>(index);
  }

  std::uint64_t bytes_ = 0;
  std::size_t count_ = 0;
  std::uint64_t pops_ = 0;
  BlockList others_;
  std::size_t runs_begun_ = 0;
  std::array<std::uint8_t, kSmallClasses> begun_{};  ///< size classes of the runs
  std::array<Block*, kSmallClasses> runs_{};
};

}  // namespace cupool::engine
