// What a thread has freed and keeps until a fence: small blocks apart by kind, so that they become
// its own again, or somebody else's, without a look at each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/block.h"
#include "core/chain_list.h"
#include "core/size_class.h"

namespace cupool::core {

/// Blocks that wait for the same fence. Not thread-safe.
struct FreedBlocks {
  ChainList chains;         ///< each of one kind
  BlockList others;         ///< that need a look at each
  std::uint64_t bytes = 0;  ///< of all

  std::size_t count() const { return chains.count() + others.count; }
  bool empty() const { return chains.empty() && others.empty(); }

  /// Appends all of `other` and leaves it empty.
  void splice(FreedBlocks& other) {
    chains.splice(other.chains);
    others.splice(other.others);
    bytes += other.bytes;
    other = FreedBlocks{};
  }

  /// All of them in one list, those of one kind together.
  BlockList take_all() {
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

/// The blocks that a thread is freeing. Small itself: a context leaves the caches of its threads
/// behind. Not thread-safe.
class FreedBatch {
 public:
  bool empty() const { return count_ == 0; }
  std::uint64_t bytes() const { return bytes_; }
  std::size_t count() const { return count_; }
  /// How often everything was taken out.
  std::uint64_t takes() const { return takes_; }

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

  /// Takes out everything.
  FreedBlocks take() {
    FreedBlocks taken;
    for (; runs_begun_ != 0; --runs_begun_) {
      Block*& run = runs_[begun_[runs_begun_ - 1]];
      BlockList chain;
      chain.tail = run;
      chain.head = run->next;
      chain.count = run->chain_length;
      chain.bytes = run->chain_length * run->capacity;
      run->next = nullptr;
      run = nullptr;
      taken.chains.push(chain);
    }
    taken.others.splice(others_);
    taken.bytes = bytes_;
    bytes_ = 0;
    count_ = 0;
    ++takes_;
    return taken;
  }

 private:
  // A run of one kind is a ring of which the oldest block is known, and knows the length; next to
  // it comes the newest. Last in, first out: what was touched last is had first.
  void begin(Block* block, std::size_t index) {
    block->next = block;
    block->chain_length = 1;
    runs_[index] = block;
    begun_[runs_begun_++] = static_cast<std::uint8_t>(index);
  }

  std::uint64_t bytes_ = 0;
  std::size_t count_ = 0;
  std::uint64_t takes_ = 0;
  BlockList others_;
  std::size_t runs_begun_ = 0;
  std::array<std::uint8_t, kSmallClasses> begun_{};  ///< their classes
  std::array<Block*, kSmallClasses> runs_{};
};

}  // namespace cupool::core
