// Blocks in chains, each of one capacity: who takes a whole chain touches two of its blocks, and
// not those which another processor may have touched last.
#pragma once

#include <cstddef>

#include "core/block.h"

namespace cupool::core {

/// Small blocks in chains: each is linked by Block::next, and its first block knows the last one,
/// the length, and the next chain. Not thread-safe.
class ChainList {
 public:
  bool empty() const { return head_ == nullptr; }
  std::size_t count() const { return count_; }

  /// Adds blocks of one capacity as a chain, at the end; there are some, and none afterwards.
  void push(BlockList& blocks) {
    set_first(blocks.head, blocks.tail, blocks.count, nullptr);
    (head_ == nullptr ? head_ : tail_->next_chain) = blocks.head;
    tail_ = blocks.head;
    count_ += blocks.count;
    blocks = BlockList{};
  }

  /// Takes out the first chain; there is one.
  BlockList pop() {
    BlockList chain;
    chain.head = head_;
    chain.tail = head_->last_of_chain;
    chain.count = head_->chain_length;
    chain.bytes = head_->chain_length * head_->capacity;
    head_ = head_->next_chain;
    if (head_ == nullptr) tail_ = nullptr;
    count_ -= chain.count;
    return chain;
  }

  /// Appends all of `other` and leaves it empty.
  void splice(ChainList& other) {
    if (other.empty()) return;
    (head_ == nullptr ? head_ : tail_->next_chain) = other.head_;
    tail_ = other.tail_;
    count_ += other.count_;
    other = ChainList{};
  }

  /// Moves up to `most` blocks to `taken`: chains, and the beginning of one that is longer.
  void take(std::size_t most, BlockList* taken) {
    while (most != 0 && head_ != nullptr) {
      Block* const first = head_;
      if (first->chain_length <= most) {
        BlockList chain = pop();
        most -= chain.count;
        taken->splice(chain);
        continue;
      }
      Block* rest = first;
      for (std::size_t i = 0; i < most; ++i) {
        Block* const block = rest;
        rest = block->next;
        taken->push(block);
      }
      set_first(rest, first->last_of_chain, first->chain_length - most, first->next_chain);
      if (tail_ == first) tail_ = rest;
      head_ = rest;
      count_ -= most;
      return;
    }
  }

 private:
  static void set_first(Block* block, Block* last, std::size_t length, Block* next_chain) {
    block->last_of_chain = last;
    block->chain_length = static_cast<std::uint32_t>(length);
    block->next_chain = next_chain;
  }

  Block* head_ = nullptr;
  Block* tail_ = nullptr;  ///< the first block of the last chain
  std::size_t count_ = 0;
};

}  // namespace cupool::core
