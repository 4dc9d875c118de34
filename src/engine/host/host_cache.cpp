// SPDX-License-Identifier: Apache-2.0
// Lists are newest first: the newest block is the warmest, and the oldest ones are those that decay
// gives back. A shard keeps the part of the limit that it once needed, so that threads which free
// and allocate in turn write nothing that others read.
#include "engine/host/host_cache.h"

#include <atomic>
#include <new>

namespace cupool::engine {

template <typename Visit>
void HostCache::each_shard(const Visit& visit) {
  for (auto& of_node : shards_) {
    for (Shard& shard : of_node) visit(shard);
  }
}

// In tests: the cache of the process lives as long as it.
HostCache::~HostCache() {
  for (auto& of_node : shards_) {
    for (Shard& shard : of_node) {
      for (Lists* const lists : shard.idle) delete lists;
    }
  }
}

void* HostCache::pop(std::uint64_t wanted, std::uint64_t requested, unsigned kind, unsigned node,
                     EpochNumber complete) {
  return pop_in(own_shard(node), wanted, requested, kind, complete);
}

// What a running thread has in its shard it is about to pop: a thread that loses it comes here in
// turn. So that not all begin with the same shard, each begins behind its own.
void* HostCache::pop_others(std::uint64_t wanted, std::uint64_t requested, unsigned kind,
                            unsigned node, EpochNumber complete, std::uint64_t* idle) {
  auto& of_node = shards_[node % kHostNodes];
  const std::size_t own = HostShards::own();
  for (const bool of_running : {false, true}) {
    *idle = 0;
    for (std::size_t i = 1; i <= kHostShards; ++i) {
      const std::size_t index = (own + i) % kHostShards;
      Shard& shard = of_node[index];
      if (!of_running && HostShards::has_owner(index)) continue;
      if (shard.bytes.load(std::memory_order_relaxed) >= wanted) {
        if (void* const memory = pop_in(shard, wanted, requested, kind, complete)) return memory;
      }
      *idle += shard.bytes.load(std::memory_order_relaxed);
    }
  }
  for (const auto& each : shards_) {
    if (&each == &of_node) continue;
    for (const Shard& shard : each) *idle += shard.bytes.load(std::memory_order_relaxed);
  }
  return nullptr;
}

void* HostCache::pop_in(Shard& shard, std::uint64_t wanted, std::uint64_t requested, unsigned kind,
                        EpochNumber complete) {
  const std::lock_guard lock(shard.mutex);
  if (!shard.retired.empty()) reclaim_in(shard, complete);
  Lists* const lists = shard.idle[kind];
  if (lists == nullptr) return nullptr;
  const std::size_t first = host_class(wanted);
  for (const std::size_t index : {first, first + 1}) {
    List& list = lists->of_class[index];
    unsigned looks = 0;
    for (Block* block = list.newest; block != nullptr && looks != kLongestSearch;
         block = block->next, ++looks) {
      if (!host_block_fits(block->capacity, wanted)) continue;
      unlink(list, *block);
      shrink(shard, block->capacity);
      ++shard.counts.hits;
      block->requested = requested;
      void* const memory = reinterpret_cast<void*>(std::uint64_t{block->address});
      block->state.store(BlockState::live, std::memory_order_release);
      return memory;
    }
  }
  return nullptr;
}

// Made once for each shard and kind. Out of host memory: null.
HostCache::Lists* HostCache::lists_of(Shard& shard, unsigned kind) {
  Lists*& lists = shard.idle[kind];
  if (lists == nullptr) lists = new (std::nothrow) Lists;
  return lists;
}

// What another thread of the shard takes meanwhile is missing then: the caller gives the block to
// the driver.
bool HostCache::allot(Shard& shard, std::uint64_t bytes) {
  if (!reserve(bytes)) {
    give_up_unused_allotments();
    if (!reserve(bytes)) return false;
  }
  const std::lock_guard lock(shard.mutex);
  shard.allotted += bytes;
  return true;
}

bool HostCache::reserve(std::uint64_t bytes) {
  const std::uint64_t before = reserved_.fetch_add(bytes, std::memory_order_relaxed);
  if (bytes <= limit() && before <= limit() - bytes) return true;
  reserved_.fetch_sub(bytes, std::memory_order_relaxed);
  return false;
}

void HostCache::give_up_unused_allotments() {
  each_shard([this](Shard& shard) {
    const std::lock_guard lock(shard.mutex);
    const std::uint64_t used = shard.bytes.load(std::memory_order_relaxed);
    reserved_.fetch_sub(shard.allotted - used, std::memory_order_relaxed);
    shard.allotted = used;
  });
}

void HostCache::put_idle(Shard& shard, Block& block) {
  List& list = shard.idle[host_kind_of(block.kind)]->of_class[host_class(block.capacity)];
  block.idle_since = step_.load(std::memory_order_relaxed);
  block.idle_turn = turn_.load(std::memory_order_relaxed);
  block.newer = nullptr;
  block.next = list.newest;
  (list.newest == nullptr ? list.oldest : list.newest->newer) = &block;
  list.newest = &block;
}

void HostCache::unlink(List& list, Block& block) {
  (block.newer == nullptr ? list.newest : block.newer->next) = block.next;
  (block.next == nullptr ? list.oldest : block.next->newer) = block.newer;
  block.next = block.newer = nullptr;
}

void HostCache::reclaim_in(Shard& shard, EpochNumber complete) {
  while (!shard.retired.empty() &&
         std::uint64_t{shard.retired.head->lane_epoch} <= value_of(complete)) {
    Block* const block = shard.retired.pop();
    retired_bytes_.fetch_sub(block->capacity, std::memory_order_relaxed);
    put_idle(shard, *block);
  }
}

void HostCache::reclaim(EpochNumber complete) {
  each_shard([&](Shard& shard) {
    if (shard.bytes.load(std::memory_order_relaxed) == 0) return;
    const std::lock_guard lock(shard.mutex);
    reclaim_in(shard, complete);
  });
}

bool HostCache::is_due(Which which, const Block& idle) const {
  constexpr std::uint32_t kTurns = 2;
  switch (which) {
    case Which::older:
      return turn_.load(std::memory_order_relaxed) - idle.idle_turn >= kTurns;
    case Which::unneeded:
      return step_.load(std::memory_order_relaxed) - idle.idle_since >= kDecaySteps;
    default:
      return true;
  }
}

BlockList HostCache::take(Which which, std::uint64_t most_bytes) {
  BlockList taken;
  each_shard([&](Shard& shard) {
    if (taken.bytes >= most_bytes) return;
    // For all, a thread that is just caching a block has to come first, or find its context gone.
    if (which != Which::all && shard.bytes.load(std::memory_order_relaxed) == 0) return;
    const std::lock_guard lock(shard.mutex);
    for (Lists* const lists : shard.idle) {
      if (lists == nullptr) continue;
      for (List& list : lists->of_class) {
        while (list.oldest != nullptr && taken.bytes < most_bytes) {
          Block& block = *list.oldest;
          if (!is_due(which, block)) break;
          unlink(list, block);
          shrink(shard, block.capacity);
          taken.push(&block);
        }
      }
    }
    while (which == Which::all && !shard.retired.empty() && taken.bytes < most_bytes) {
      Block* const block = shard.retired.pop();
      retired_bytes_.fetch_sub(block->capacity, std::memory_order_relaxed);
      shrink(shard, block->capacity);
      taken.push(block);
    }
  });
  return taken;
}

bool HostCache::take(const Block& block, std::uint64_t word) {
  const CUdeviceptr address = block.address;
  const std::uint64_t capacity = block.capacity;
  const unsigned kind = host_kind_of(block.kind);
  // What was read is of one life, if that has not ended since. In a list, a record stays a block's.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (block.state.word() != word) return false;
  const auto is_it = [&](const Block& each) { return &each == &block && each.address == address; };
  bool taken = false;
  each_shard([&](Shard& shard) {
    if (taken) return;
    const std::lock_guard lock(shard.mutex);
    if (Lists* const lists = shard.idle[kind]; lists != nullptr) {
      List& list = lists->of_class[host_class(capacity)];
      Block* found = list.newest;
      while (found != nullptr && !is_it(*found)) found = found->next;
      if (found != nullptr) {
        unlink(list, *found);
        taken = true;
      }
    }
    BlockList others;
    while (Block* const retired = shard.retired.pop()) {
      if (!is_it(*retired)) {
        others.push(retired);
        continue;
      }
      retired_bytes_.fetch_sub(capacity, std::memory_order_relaxed);
      taken = true;
    }
    shard.retired = others;
    if (taken) shrink(shard, capacity);
  });
  return taken;
}

std::uint64_t HostCache::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& of_node : shards_) {
    for (const Shard& shard : of_node) sum += shard.bytes.load(std::memory_order_relaxed);
  }
  return sum;
}

HostCache::Counts HostCache::take_counts() {
  Counts sum;
  each_shard([&](Shard& shard) {
    const std::lock_guard lock(shard.mutex);
    sum.hits += shard.counts.hits;
    sum.frees += shard.counts.frees;
    shard.counts = Counts{};
  });
  return sum;
}

}  // namespace cupool::engine
