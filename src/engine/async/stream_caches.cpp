// SPDX-License-Identifier: Apache-2.0
// Which stream has which cache, and everything but a hit. The lock of one cache is held at a time.
#include "engine/async/stream_caches.h"

#include <algorithm>
#include <atomic>
#include <new>

#include "cuda/errors.h"
#include "util/mutation.h"

namespace cupool::engine {

namespace {

// A refusal may pass, and a stream that is about to end is not asked later.
bool has_nothing_left(CUresult (*query)(CUstream), CUstream stream) {
  CUresult answer = query(stream);
  if (cuda::is_refusal(answer)) answer = query(stream);
  return answer == CUDA_SUCCESS || CUPOOL_MUTATED("takes-a-busy-streams-blocks");
}

StreamUseNumber next_use() {
  static std::atomic<StreamUseNumber> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

Block* StreamCache::find_fitting(std::uint64_t wanted, std::uint64_t requested) const {
  const std::size_t first = stream_class(wanted);
  for (const std::size_t index : {first, first + 1}) {
    unsigned looks = 0;
    for (Block* block = lists_[index].newest; block != nullptr && looks != kLongestSearch;
         block = block->next, ++looks) {
      if (stream_block_fits(block->capacity, wanted, requested)) return block;
    }
  }
  return nullptr;
}

// From the oldest on.
Block* StreamCache::find_complete(std::uint64_t wanted, std::uint64_t requested,
                                  EpochNumber complete, bool* pending) const {
  const std::size_t first = stream_class(wanted);
  for (const std::size_t index : {first, first + 1}) {
    unsigned looks = 0;
    for (Block* block = lists_[index].oldest; block != nullptr && looks != kLongestSearch;
         block = block->newer, ++looks) {
      if (!stream_block_fits(block->capacity, wanted, requested)) continue;
      if (block->lane_epoch <= value_of(complete) || CUPOOL_MUTATED("reuses-on-another-stream")) {
        return block;
      }
      *pending = true;
    }
  }
  return nullptr;
}

void StreamCache::link(Block& block) {
  List& list = lists_[stream_class(block.capacity)];
  block.newer = nullptr;
  block.next = list.newest;
  (list.newest == nullptr ? list.oldest : list.newest->newer) = &block;
  list.newest = &block;
}

void StreamCache::unlink(Block& block) {
  List& list = lists_[stream_class(block.capacity)];
  (block.newer == nullptr ? list.newest : block.newer->next) = block.next;
  (block.next == nullptr ? list.oldest : block.next->newer) = block.newer;
  block.next = block.newer = nullptr;
}

void StreamCache::put(Block& block) {
  newest_free_ = std::max<std::uint64_t>(newest_free_, block.lane_epoch);
  settle();
  link(block);
  set_bytes(bytes() + block.capacity);
  used_step_ = step_;
}

void StreamCache::take_out(Block& block) {
  unlink(block);
  leaves(block);
}

// In tests: the caches of the process live as long as it.
StreamCaches::~StreamCaches() {
  for (auto& cache : caches_) delete cache.load();
}

template <typename Visit>
void StreamCaches::each(const Visit& visit) {
  const std::size_t count = count_.load(std::memory_order_acquire);
  for (std::size_t index = 0; index < count; ++index) {
    visit(*caches_[index].load(std::memory_order_relaxed));
  }
}

StreamCache* StreamCaches::find_locked(const StreamName& name) {
  StreamCache* found = nullptr;
  each([&](StreamCache& cache) {
    if (cache.name_ == name) found = &cache;
  });
  return found;
}

StreamCaches::Place StreamCaches::find(const StreamName& name) {
  const std::lock_guard lock(mutex_);
  StreamCache* const found = find_locked(name);
  return {found, found == nullptr ? 0 : found->use_};
}

StreamCaches::Place StreamCaches::find_or_add(const StreamName& name, stats::DeviceStats& stats) {
  const std::lock_guard lock(mutex_);
  return add_locked(name, stats);
}

StreamCaches::Place StreamCaches::add_locked(const StreamName& name, stats::DeviceStats& stats) {
  StreamCache* const found = find_locked(name);
  if (found != nullptr) return {found, found->use_};
  StreamCache* const cache = unused_locked();
  if (cache == nullptr) return {};
  const std::lock_guard lock(cache->mutex_);
  cache->use_ = next_use();
  cache->name_ = name;
  cache->stats_ = &stats;
  cache->step_ = cache->used_step_ = step_.load(std::memory_order_relaxed);
  return {cache, cache->use_};
}

StreamCache* StreamCaches::unused_locked() {
  StreamCache* unused = nullptr;
  each([&](StreamCache& cache) {
    if (cache.use_ == 0) unused = &cache;
  });
  const std::size_t count = count_.load(std::memory_order_relaxed);
  if (unused != nullptr || count == kMostStreams) return unused;
  unused = new (std::nothrow) StreamCache;
  if (unused == nullptr) return nullptr;
  caches_[count].store(unused, std::memory_order_relaxed);
  count_.store(count + 1, std::memory_order_release);
  return unused;
}

bool StreamCaches::reserve(std::uint64_t bytes) {
  const std::uint64_t limit = limit_.load(std::memory_order_relaxed);
  const std::uint64_t before = reserved_.fetch_add(bytes, std::memory_order_relaxed);
  if (bytes <= limit && before <= limit - bytes) return true;
  reserved_.fetch_sub(bytes, std::memory_order_relaxed);
  return false;
}

// A cache keeps the part of the limit that it once needed, so that threads which free and allocate
// in turn write nothing that others read. What nobody uses is given up when it is needed elsewhere.
bool StreamCaches::allot(const Place& place, std::uint64_t bytes) {
  if (!reserve(bytes)) {
    each([this](StreamCache& cache) {
      const std::lock_guard lock(cache.mutex_);
      give_up_locked(cache, cache.allotted_ - cache.bytes());
    });
    if (!reserve(bytes)) return false;
  }
  const std::lock_guard lock(place.cache->mutex_);
  if (place.cache->use_ != place.use) {
    reserved_.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  place.cache->allotted_ += bytes;
  return true;
}

void StreamCaches::give_up_locked(StreamCache& cache, std::uint64_t bytes) {
  cache.allotted_ -= bytes;
  reserved_.fetch_sub(bytes, std::memory_order_relaxed);
}

CUdeviceptr StreamCaches::pop_complete(const Context* context, std::uint64_t life,
                                       std::uint64_t wanted, std::uint64_t requested,
                                       EpochNumber complete, bool* pending) {
  CUdeviceptr address = 0;
  each([&](StreamCache& cache) {
    if (address != 0 || cache.bytes() < wanted) return;
    const std::lock_guard lock(cache.mutex_);
    if (cache.name_.context != context || cache.name_.life != life) return;
    cache.settle();
    Block* const block = cache.find_complete(wanted, requested, complete, pending);
    if (block == nullptr) return;
    cache.unlink(*block);
    address = cache.hand_out(*block, requested);
  });
  return address;
}

void StreamCaches::count_locked(StreamCache& cache) {
  if (cache.hits_ == 0 && cache.frees_ == 0) return;
  cache.stats_->add(stats::Counter::own_async_malloc_calls_total, cache.hits_);
  cache.stats_->add(stats::Counter::own_async_served_total, cache.hits_);
  cache.stats_->add(stats::Counter::own_async_free_calls_total, cache.frees_);
  cache.stats_->unused_stream_ordered.fetch_add(cache.unused_, std::memory_order_relaxed);
  cache.hits_ = cache.frees_ = 0;
  cache.unused_ = 0;
}

// Under the lock of the cache, which is empty.
void StreamCaches::end_locked(StreamCache& cache) {
  count_locked(cache);
  cache.use_ = 0;
  cache.newest_free_ = 0;
  cache.name_ = StreamName{};
}

// The blocks go to one of the two caches of all streams of the context that are gone; the first
// such cache becomes it. A stream is asked once it has lost its cache, so that the answer holds for
// all blocks in there.
void StreamCaches::stream_ends(CUstream stream, CUresult (*query)(CUstream)) {
  if (CUPOOL_MUTATED("keeps-a-destroyed-streams-blocks")) return;
  const std::lock_guard lock(mutex_);
  each([&](StreamCache& cache) {
    if (cache.name_.stream != stream) return;
    StreamName gone = cache.name_;
    gone.stream = StreamName::kGone;
    if (query != nullptr && cache.bytes() != 0) {
      {
        const std::lock_guard own(cache.mutex_);
        cache.use_ = next_use();
      }
      if (has_nothing_left(query, stream)) {
        gone.stream = StreamName::kGoneWhenDone;
      }
    }
    StreamCache* const others = find_locked(gone);
    BlockList moved;
    std::uint64_t allotted = 0;
    {
      const std::lock_guard own(cache.mutex_);
      cache.settle();
      if (gone.stream == StreamName::kGoneWhenDone) complete_locked(cache);
      if (others == nullptr) {
        cache.use_ = next_use();
        cache.name_ = gone;
        return;
      }
      for (StreamCache::List& list : cache.lists_) {
        while (Block* const block = list.oldest) {
          cache.take_out(*block);
          moved.push(block);
        }
      }
      allotted = cache.allotted_;
      cache.allotted_ = 0;
      end_locked(cache);
    }
    const std::lock_guard theirs(others->mutex_);
    others->allotted_ += allotted;
    while (Block* const block = moved.pop()) others->put(*block);
  });
}

void StreamCaches::complete_locked(StreamCache& cache) {
  for (StreamCache::List& list : cache.lists_) {
    for (Block* block = list.oldest; block != nullptr; block = block->newer) {
      block->lane_epoch = value_of(kNoEpoch);
    }
  }
}

BlockList StreamCaches::context_ends(const Context* context) {
  BlockList taken;
  const std::lock_guard lock(mutex_);
  each([&](StreamCache& cache) {
    if (cache.name_.context != context) return;
    const std::lock_guard own(cache.mutex_);
    cache.settle();
    for (StreamCache::List& list : cache.lists_) {
      while (Block* const block = list.oldest) {
        cache.take_out(*block);
        taken.push(block);
      }
    }
    give_up_locked(cache, cache.allotted_);
    end_locked(cache);
  });
  return taken;
}

Block* StreamCaches::oldest_due(const StreamCache& cache, std::size_t list, EpochNumber up_to,
                                Which which) {
  Block* const block = cache.lists_[list].oldest;
  if (block == nullptr || block->lane_epoch > value_of(up_to)) return nullptr;
  const bool is_fresh = which == Which::unneeded && cache.step_ - block->idle_since < kDecaySteps;
  return is_fresh ? nullptr : block;
}

// A free may come between query and lock: of work that the query has not seen, but in an epoch that
// is newer than `up_to`. Before a stream is destroyed, stream_ends() takes the lock of all caches.
BlockList StreamCaches::take(const Context* context, EpochNumber up_to, Which which,
                             std::uint64_t most_bytes, CUresult (*query)(CUstream)) {
  const auto has_due = [&](StreamCache& cache) {
    const std::lock_guard own(cache.mutex_);
    cache.settle();
    for (std::size_t list = 0; list != kStreamClasses; ++list) {
      if (oldest_due(cache, list, up_to, which) != nullptr) return true;
    }
    return false;
  };
  BlockList taken;
  const std::lock_guard lock(mutex_);
  each([&](StreamCache& cache) {
    const StreamName& name = cache.name_;
    if (cache.bytes() == 0 || name.context != context || taken.bytes >= most_bytes) return;
    if (query != nullptr) {
      if (name.is_gone() || !has_due(cache)) return;
      if (!has_nothing_left(query, name.stream)) return;
    }
    const std::lock_guard own(cache.mutex_);
    const std::uint64_t before = taken.bytes;
    cache.settle();
    for (std::size_t list = 0; list != kStreamClasses; ++list) {
      while (taken.bytes < most_bytes) {
        Block* const block = oldest_due(cache, list, up_to, which);
        if (block == nullptr) break;
        cache.take_out(*block);
        taken.push(block);
      }
    }
    give_up_locked(cache, taken.bytes - before);
  });
  return taken;
}

BlockList StreamCaches::take_of(const Place& place) {
  BlockList taken;
  const std::lock_guard lock(place.cache->mutex_);
  if (place.cache->use_ != place.use) return taken;
  place.cache->settle();
  for (StreamCache::List& list : place.cache->lists_) {
    while (Block* const block = list.oldest) {
      place.cache->take_out(*block);
      taken.push(block);
    }
  }
  give_up_locked(*place.cache, taken.bytes);
  return taken;
}

void StreamCaches::put_back(const Context* context, std::uint64_t life, stats::DeviceStats& stats,
                            BlockList& blocks) {
  const std::lock_guard lock(mutex_);
  StreamCache* cache = add_locked({context, life, StreamName::kGone}, stats).cache;
  if (cache == nullptr) cache = give_up_a_stream_locked(context, life);
  if (cache == nullptr) return;  // the driver keeps the memory
  const std::lock_guard own(cache->mutex_);
  while (Block* const block = blocks.pop()) {
    cache->allotted_ += block->capacity;
    reserved_.fetch_add(block->capacity, std::memory_order_relaxed);
    cache->put(*block);
  }
}

// All places are in use: the context's stream that has used its own least gives it up, as if it had
// ended. The driver serves it from then on.
StreamCache* StreamCaches::give_up_a_stream_locked(const Context* context, std::uint64_t life) {
  StreamCache* found = nullptr;
  std::uint32_t used_step = 0;
  each([&](StreamCache& cache) {
    if (cache.use_ == 0 || cache.name_.context != context || cache.name_.life != life) return;
    const std::lock_guard own(cache.mutex_);
    if (found != nullptr && cache.used_step_ >= used_step) return;
    found = &cache;
    used_step = cache.used_step_;
  });
  if (found == nullptr) return nullptr;
  const std::lock_guard own(found->mutex_);
  found->use_ = next_use();
  found->name_.stream = StreamName::kGone;
  return found;
}

bool StreamCaches::take(Block& block, std::uint64_t word) {
  const CUdeviceptr address = block.address;
  const std::uint64_t capacity = block.capacity;
  // What was read is of one life, if that has not ended since. In a list, a record stays a block's.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (block.state.word() != word) return false;
  bool taken = false;
  each([&](StreamCache& cache) {
    const std::lock_guard lock(cache.mutex_);
    cache.settle();
    Block* found = cache.lists_[stream_class(capacity)].newest;
    while (found != nullptr && (found != &block || found->address != address)) found = found->next;
    if (found == nullptr) return;
    cache.take_out(block);
    taken = true;
  });
  return taken;
}

void StreamCaches::end_decay_step() {
  const std::uint32_t step = step_.fetch_add(1, std::memory_order_relaxed) + 1;
  const std::lock_guard lock(mutex_);
  each([&](StreamCache& cache) {
    const std::lock_guard own(cache.mutex_);
    cache.step_ = step;
    if (cache.use_ == 0 || cache.bytes() != 0) return;
    if (step - cache.used_step_ < kDecaySteps) return;
    give_up_locked(cache, cache.allotted_);
    end_locked(cache);
  });
}

StreamCaches::Idle StreamCaches::idle(const Context* context) {
  Idle idle;
  each([&](StreamCache& cache) {
    if (cache.bytes() == 0) return;
    const std::lock_guard lock(cache.mutex_);
    if (context != nullptr && cache.name_.context != context) return;
    idle.bytes += cache.bytes();
    idle.freed_up_to = std::max(idle.freed_up_to, EpochNumber{cache.newest_free_});
  });
  return idle;
}

void StreamCaches::fold() {
  const std::lock_guard lock(mutex_);
  each([&](StreamCache& cache) {
    const std::lock_guard own(cache.mutex_);
    count_locked(cache);
  });
}

}  // namespace cupool::engine
