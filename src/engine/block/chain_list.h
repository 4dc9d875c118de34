// SPDX-License-Identifier: Apache-2.0
// Blocks in chains, each of one capacity. Taking a whole chain touches only two of its blocks, and
// so few cache lines that another processor used last.
#pragma once

#include <cstddef>

#include "engine/block/block.h"

namespace cupool::engine {

/// Small blocks in chains, linked by Block::next. The first block of a chain has its length and
/// pointers to its last block and to the next chain. Not thread-safe.
class ChainList {
 public:
  bool empty() const { return head_ == nullptr; }
  std::size_t count() const { return count_; }

  /// Appends blocks of one capacity as a chain. `blocks` must not be empty, and is empty
  /// afterwards.
  void push(BlockList& blocks) {
    set_first(blocks.head, blocks.tail, blocks.count, nullptr);
    (head_ == nullptr ? head_ : tail_->next_chain) = blocks.head;
    tail_ = blocks.head;
    count_ += blocks.count;
    blocks = BlockList{};
  }

  /// Takes out the first chain. There must be one.
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

  /// Appends all chains of `other`, which is then empty.
  void splice(ChainList& other) {
    if (other.empty()) return;
    (head_ == nullptr ? head_ : tail_->next_chain) = other.head_;
    tail_ = other.tail_;
    count_ += other.count_;
    other = ChainList{};
  }

  /// Moves up to `most` blocks to `popped`: whole chains, and the beginning of a longer one.
  void pop(std::size_t most, BlockList* popped) {
    while (most != 0 && head_ != nullptr) {
      Block* const first = head_;
      if (first->chain_length <= most) {
        BlockList chain = pop();
        most -= chain.count;
        popped->splice(chain);
        continue;
      }
      Block* rest = first;
      for (std::size_t i = 0; i < most; ++i) {
        Block* const block = rest;
        rest = block->next;
        popped->push(block);
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
  Block* tail_ = nullptr;  ///< first block of the last chain
  std::size_t count_ = 0;
};

}  // namespace cupool::engine
