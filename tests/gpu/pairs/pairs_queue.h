// SPDX-License-Identifier: Apache-2.0
// A bounded queue between one thread that allocates and one that frees. It waits by spinning and
// yields after a while; what it costs by itself is measured with allocator=none.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace pairs {

struct Block {
  void* pointer = nullptr;
  size_t bytes = 0;
};

class Queue {
 public:
  explicit Queue(size_t places) : places_(places), blocks_(places) {}

  // One thread only.
  void push(const Block& block) {
    const uint64_t tail = tail_.load(std::memory_order_relaxed);
    for (int spins = 0; tail - known_head_ == places_; ++spins) {
      known_head_ = head_.load(std::memory_order_acquire);
      if (spins > 1000) std::this_thread::yield();
    }
    blocks_[advance(&tail_place_)] = block;
    tail_.store(tail + 1, std::memory_order_release);
  }

  // One other thread only. False when the queue is closed and empty.
  bool pop(Block* block) {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    for (int spins = 0; head == known_tail_; ++spins) {
      const bool closed = closed_.load(std::memory_order_acquire);
      known_tail_ = tail_.load(std::memory_order_acquire);
      if (closed && head == known_tail_) return false;
      if (spins > 1000) std::this_thread::yield();
    }
    *block = blocks_[advance(&head_place_)];
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

  // By the thread that pushes, after its last one.
  void close() { closed_.store(true, std::memory_order_release); }

 private:
  size_t advance(size_t* next) const {
    const size_t now = *next;
    *next = now + 1 == places_ ? 0 : now + 1;
    return now;
  }

  const size_t places_;
  std::vector<Block> blocks_;
  // A line for each side: else they would take them from one another at each block.
  alignas(128) std::atomic<uint64_t> tail_{0};
  uint64_t known_head_ = 0;
  size_t tail_place_ = 0;
  alignas(128) std::atomic<uint64_t> head_{0};
  uint64_t known_tail_ = 0;
  size_t head_place_ = 0;
  alignas(128) std::atomic<bool> closed_{false};
};

}  // namespace pairs
