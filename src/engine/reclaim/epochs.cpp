// SPDX-License-Identifier: Apache-2.0
// The open epoch's blocks, and the figures of all epochs.
#include "engine/reclaim/epochs.h"

#include <mutex>

#include "util/mutation.h"

namespace cupool::engine {

EpochNumber Epochs::retire(Block* block) {
  const std::lock_guard lock(open_mutex_);
  count_held(1);
  const EpochNumber number =
      CUPOOL_MUTATED("obvious-mapping") ? kNoEpoch : open_.join(block->capacity, 1);
  open_blocks_.push(block);
  return number;
}

// The atomic addition orders a free before each fence recorded after its epoch was closed.
EpochNumber Epochs::join(std::uint64_t bytes, std::size_t frees) {
  if (CUPOOL_MUTATED("obvious-mapping")) return kNoEpoch;
  const EpochNumber number = open_.join(bytes, frees);
  return CUPOOL_MUTATED("fence-before-free") ? previous(number) : number;
}

// False: the open epoch has no frees, and is left open.
bool Epochs::close(IfEmpty if_empty, Closed* closed) {
  const std::lock_guard lock(open_mutex_);
  if (if_empty == IfEmpty::leave && !open_.has_frees()) return false;
  closed->counts = open_.close();
  closed_bytes_.fetch_add(closed->counts.bytes, std::memory_order_relaxed);
  closed->blocks.splice(open_blocks_);
  return true;
}

// The blocks of an epoch that could not be closed join those freed meanwhile.
void Epochs::reopen(Closed& closed) {
  const std::lock_guard lock(open_mutex_);
  closed.blocks.splice(open_blocks_);
  open_blocks_.splice(closed.blocks);
  settle(closed.counts.bytes);
  open_.join(closed.counts.bytes, closed.counts.frees);
}

// For blocks whose bytes were already added.
void Epochs::put_back(BlockList& blocks) {
  const std::lock_guard lock(open_mutex_);
  open_blocks_.splice(blocks);
}

BlockList Epochs::pop_all() {
  BlockList taken;
  const std::lock_guard lock(open_mutex_);
  taken.splice(open_blocks_);
  return taken;
}

void Epochs::count_held(std::ptrdiff_t blocks) {
  held_blocks_.fetch_add(static_cast<std::size_t>(blocks), std::memory_order_relaxed);
}

void Epochs::set_complete(EpochNumber up_to) {
  if (up_to > complete_up_to()) complete_up_to_.store(up_to, std::memory_order_release);
}

void Epochs::settle(std::uint64_t closed_bytes) {
  closed_bytes_.fetch_sub(closed_bytes, std::memory_order_relaxed);
}

void Epochs::abandon() {
  {
    const std::lock_guard lock(open_mutex_);
    open_blocks_ = BlockList{};
    const EpochNumber last = open_.close().number;
    closed_bytes_.store(0, std::memory_order_relaxed);
    complete_up_to_.store(last, std::memory_order_release);
  }
  held_blocks_.store(0, std::memory_order_relaxed);
}

}  // namespace cupool::engine
