// SPDX-License-Identifier: Apache-2.0
// Serves from caches, from reclaimed blocks, or with fresh memory. Read with docs/design.md,
// sections Contract, Engine and Invariants.
#include "engine/serve/allocations.h"

#include <algorithm>
#include <initializer_list>
#include <new>

#include "cuda/errors.h"
#include "engine/block/accounting.h"
#include "engine/serve/failure.h"
#include "engine/serve/retire.h"
#include "engine/serve/thread_limits.h"
#include "stats/timeline.h"
#include "util/clock.h"
#include "util/log.h"

namespace cupool::engine {

using stats::Counter;
using stats::DeviceStats;
using stats::EventKind;
using stats::Gauge;

namespace {

// Bytes that a thread pops from the shared cache at once. Also the bytes up to which its first
// batches may grow by fresh memory.
constexpr std::uint64_t kRefillBytes = BlockCache::kMostChainBytes;

std::uint64_t held_bytes(const DeviceStats& stats) {
  return static_cast<std::uint64_t>(stats.value(Gauge::held_bytes).current);
}

void count_malloc(DeviceStats& stats, std::uint64_t bytes, Counter served_by,
                  std::uint64_t start_ns) {
  stats.add(Counter::malloc_calls_total);
  stats.add(Counter::malloc_requested_bytes_total, bytes);
  stats.add(served_by);
  stats.requested_sizes().record(bytes);
  stats::this_thread().add_mallocs(1, bytes);
  stats.call_times().malloc.record(util::now_ns() - start_ns);
}

// The epoch that is enough for a poll while other threads hold the lock (see Ordering::poll()). A
// thread that may grow does nothing then. No thread that has a cache queues for the lock.
std::optional<EpochNumber> enough_for_poll(ThreadCache* cache, bool may_grow) {
  if (cache == nullptr) return std::nullopt;
  if (may_grow) return kNoEpoch;
  const ThreadCache::Guard guard(*cache);
  return cache->in_flight.oldest();
}

}  // namespace

inline bool Allocations::can_serve(Context& context, std::uint64_t bytes) {
  const Device& device = context.device();
  return context.usable() && Serving::open() && bytes <= device.limits().max_block &&
         bytes <= device.total_bytes();
}

[[gnu::always_inline]] inline CUdeviceptr Allocations::allocate_counted(Context& context,
                                                                        ThreadCache& cache,
                                                                        std::uint64_t bytes) {
  const ThreadCache::Guard guard(cache);
  Block* block = cache.idle.pop(bytes);
  if (block == nullptr) return 0;
  Tally& tally = cache.tally;
  tally.count_malloc(bytes, block->capacity);
  if (tally.is_due(cache.limits.tally)) tally.fold(context.stats());
  return hand_over(*block, bytes);
}

// The hot path: pops from the thread's own cache. One call in 63 is timed and stands for all.
[[gnu::always_inline]] inline CUdeviceptr Allocations::allocate_own(Context& context,
                                                                    std::uint64_t bytes) {
  ThreadCache* cache = thread_cache(context);
  if (cache == nullptr) return 0;
  const bool timed = is_timed();
  const std::uint64_t start = timed ? util::now_ns() : 0;
  CUdeviceptr address = allocate_counted(context, *cache, bytes);
  if (address == 0 && (address = reclaim_and_allocate(context, *cache, bytes)) == 0) return 0;
  if (timed) context.stats().call_times().malloc.record(util::now_ns() - start, kTimedShare);
  return address;
}

std::optional<CUresult> Allocations::try_allocate(std::uint64_t bytes, CUdeviceptr* address,
                                                  Patience& patience) {
  if (bytes == 0 || address == nullptr || !Serving::open()) return std::nullopt;
  patience.wants(bytes);
  Context* context = registry_.current();
  if (context == nullptr) return std::nullopt;
  if (can_serve(*context, bytes)) {
    if (const CUdeviceptr served = allocate_own(*context, bytes)) {
      *address = served;
      return CUDA_SUCCESS;
    }
  }
  try {
    return allocate_otherwise(context, bytes, address, patience);
  } catch (const std::bad_alloc&) {
    CUPOOL_WARN_ONCE("out of host memory: the driver serves such allocations");
    return std::nullopt;
  }
}

// From the shared cache, or fresh.
std::optional<CUresult> Allocations::allocate_otherwise(Context* context, std::uint64_t bytes,
                                                        CUdeviceptr* address, Patience& patience) {
  const std::uint64_t start = util::now_ns();
  context = registry_.ask_for_current(*context);
  if (context == nullptr || !can_serve(*context, bytes)) return std::nullopt;
  if (preparation_.pools_are_awaited(context->device())) return std::nullopt;
  Counter served_by = Counter::served_shared_cache_total;
  CUdeviceptr served = allocate_shared(*context, bytes, &served_by);
  if (served == 0) {
    served_by = Counter::served_fresh_total;
    served = allocate_new(*context, bytes, patience);
    if (served == 0) return std::nullopt;
  }
  *address = served;
  count_malloc(context->stats(), bytes, served_by, start);
  if (served_by == Counter::served_fresh_total) peak_.look(*context);
  return CUDA_SUCCESS;
}

bool Allocations::try_allocate_cached(Context& context, std::uint64_t bytes, CUdeviceptr* address) {
  if (!can_serve(context, bytes)) return false;
  const CUdeviceptr served = allocate_own(context, bytes);
  if (served == 0) return false;
  *address = served;
  return true;
}

[[gnu::noinline]] CUdeviceptr Allocations::reclaim_and_allocate(Context& context,
                                                                ThreadCache& cache,
                                                                std::uint64_t bytes) {
  return idle_.reclaim(context, cache) ? allocate_counted(context, cache, bytes) : 0;
}

CUdeviceptr Allocations::allocate_shared(Context& context, std::uint64_t bytes,
                                         Counter* served_by) {
  idle_.look_for_libraries();
  const ContextVisit visit(context);
  if (!visit) return 0;
  Block* const block = pop_or_reclaim(context, capacity_for(bytes), served_by);
  return block == nullptr ? 0 : make_live(*block, bytes);
}

// Pops from the shared cache, with more blocks of that kind for the thread's next calls.
Block* Allocations::pop_shared(Context& context, ThreadCache* cache, std::uint64_t capacity) {
  if (!context.cache().may_have(capacity)) return nullptr;
  if (cache == nullptr) return context.cache().pop(capacity);
  std::size_t refill = 0;
  {
    const ThreadCache::Guard guard(*cache);
    refill = cache->idle.refill();
  }
  BlockList more;
  Block* block = context.cache().pop(capacity, refill, kRefillBytes, &more);
  if (more.empty()) return block;
  {
    const ThreadCache::Guard guard(*cache);
    cache->limits = limits_of_thread(context);
    cache->idle.cache(more, cache->limits.cached);
  }
  if (!more.empty()) context.cache().cache(more);
  return block;
}

// Tries the shared cache, then complete epochs, then this thread's batch and the open epoch, which
// an idle GPU completes as soon as it is asked. Exception: while few bytes wait in a thread, fresh
// memory lets it grow, so that one fence serves many frees. The bound is higher while another
// thread is at a fence, so that no thread queues.
Block* Allocations::pop_or_reclaim(Context& context, std::uint64_t capacity, Counter* served_by) {
  ThreadCache* cache = thread_cache(context);
  Ordering& ordering = context.ordering();
  Block* block = pop_shared(context, cache, capacity);
  for (const Ordering::Poll epochs : {Ordering::Poll::closed, Ordering::Poll::all}) {
    if (block != nullptr) break;
    std::uint64_t waiting = 0;
    std::uint64_t enough = kRefillBytes;
    bool may_grow = false;
    bool in_flight = false;
    if (cache != nullptr) {
      const ThreadCache::Guard guard(*cache);
      waiting = cache->waiting_bytes();
      enough = std::max(enough, is_large(capacity) ? cache->limits.few : cache->limits.batch);
      may_grow = !cache->waits_for(kBatchesWaiting, capacity);
      in_flight = !cache->in_flight.empty();
    }
    const bool over_budget =
        held_bytes(context.stats()) + capacity > context.device().budget().footprint();
    if (epochs == Ordering::Poll::all) {
      if (over_budget) {
        context.threads().drain(Drain::retired);
      } else if (waiting != 0) {
        if (waiting + capacity <= enough) break;
        context.threads().drain(*cache, Drain::flush);
        const ThreadCache::Guard guard(*cache);
        cache->batch.expect_free();
        in_flight = true;
      }
    }
    if (!in_flight && !ordering.epochs().holds_blocks()) continue;
    BlockList reclaimed;
    const CUresult result =
        ordering.poll(epochs, &reclaimed, enough_for_poll(over_budget ? nullptr : cache, may_grow));
    if (result != CUDA_SUCCESS) note_failure(context, result);
    if (!reclaimed.empty()) idle_.cache_or_release(context, reclaimed);
    if (cache != nullptr && idle_.reclaim(context, *cache)) {
      const ThreadCache::Guard guard(*cache);
      block = cache->idle.pop(capacity);  // a request of the thread's own capacity
      if (block != nullptr) *served_by = Counter::served_thread_cache_total;
    }
    if (block == nullptr) block = pop_shared(context, cache, capacity);
  }
  if (block != nullptr) {
    context.stats().gauge_add(Gauge::cached_bytes, -signed_bytes(block->capacity));
  }
  return block;
}

// Fresh memory of the backend. If there is none, idle memory of other sizes and other contexts is
// given back first. 0: the real call decides.
CUdeviceptr Allocations::allocate_new(Context& context, std::uint64_t bytes, Patience& patience) {
  const std::uint64_t capacity = capacity_for(bytes);
  Device& device = context.device();
  DeviceStats& stats = context.stats();
  idle_.look_for_libraries();
  preparation_.preallocate(context);
  idle_.release_ended_leases();
  if (held_bytes(stats) + capacity > device.budget().footprint()) {
    const ContextVisit visit(context);
    if (!visit) return 0;
    // Blocks held by other threads count as well.
    context.threads().drain(Drain::all);
    idle_.cache_reclaimed(context);
    Block* block = context.cache().pop(capacity);
    if (block != nullptr) stats.gauge_add(Gauge::cached_bytes, -signed_bytes(block->capacity));
    // Even if a block was found: otherwise every later miss would come here.
    BlockList others = context.cache().evict_for(capacity);
    const bool other_kind =
        !others.empty() && is_large(others.head->capacity) != is_large(capacity);
    idle_.release_complete(context, others);
    // The pool of the other kind would keep the memory that the growing pool needs.
    if (other_kind) {
      device.trim(context);
      stats.add(Counter::trims_total);
      stats::note_event(EventKind::trim, stats, 0);
    }
    if (block != nullptr) return make_live(*block, bytes);
  }

  Fresh fresh;
  out_of_memory_.before_driver_call(&context, capacity);
  std::uint64_t tried_ns = util::now_ns();
  CUresult result = allocate_fresh(context, capacity, &fresh);
  // Several attempts, because other threads free, take returned memory, or are giving idle blocks
  // back at the same time.
  const bool ran_out = result == CUDA_ERROR_OUT_OF_MEMORY;
  for (int round = 0; result == CUDA_ERROR_OUT_OF_MEMORY && round < OutOfMemory::kRetries;
       ++round) {
    const bool any =
        !patience.over() && out_of_memory_.more_given_back(context, &tried_ns, patience);
    if (any) result = allocate_fresh(context, capacity, &fresh);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) result = allocate_last(context, capacity, &fresh);
    if (!any) break;
  }
  if (ran_out && result == CUDA_SUCCESS) {
    stats.add(Counter::oom_rescues_total);
    stats::note_event(EventKind::oom_rescue, stats, capacity);
  }
  if (result != CUDA_SUCCESS) {
    note_failure(context, fresh.life, result);
    if (result != CUDA_ERROR_OUT_OF_MEMORY && !cuda::is_sticky(result) && !cuda::shut_down()) {
      CUPOOL_WARN_ONCE(
          "the driver refused pool memory (error %d); cuMemAlloc serves such allocations. "
          "CUPOOL_BACKEND=malloc avoids the failed attempts",
          static_cast<int>(result));
    }
    return 0;
  }
  if (fresh.source == BlockSource::pool) preparation_.pools_serve();
  return adopt(context, bytes, fresh);
}

// Fresh memory of the pools. Near the device's limit, where pool growth would leave too little,
// plain memory, of which the driver takes no more than needed, and spare streams of the rest. With
// CUPOOL_MAX_SIZE the rest passes through. If the driver claims to have pools and then refuses them
// (vGPU), plain memory from then on.
CUresult Allocations::allocate_fresh(Context& context, std::uint64_t capacity, Fresh* fresh) {
  const ContextVisit visit(context);
  if (!visit) return CUDA_ERROR_INVALID_CONTEXT;
  Device& device = context.device();
  Backend& backend = device.backend();
  *fresh = {0, backend.source(), context.incarnation()};
  CUresult result = backend.allocate(context, capacity, &fresh->address);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && out_of_memory_.trim_default_pool(device) != 0) {
    result = backend.allocate(context, capacity, &fresh->address);
  }
  if (fresh->source != BlockSource::pool) return result;
  if (result == CUDA_SUCCESS && !is_large(capacity)) context.small_chunk().open();
  if (result == CUDA_ERROR_NOT_SUPPORTED) {
    device.use_plain_memory();
  } else if (result != CUDA_ERROR_OUT_OF_MEMORY || device.limits().max_size != 0) {
    return result;
  }
  fresh->source = BlockSource::malloc;
  const CUresult plain =
      device.backend_of(BlockSource::malloc).allocate(context, capacity, &fresh->address);
  if (result == CUDA_ERROR_NOT_SUPPORTED && plain != CUDA_ERROR_DEINITIALIZED) {
    CUPOOL_WARN_ONCE(
        "the driver does not support the pools of device %d; memory comes from cuMemAlloc instead. "
        "CUPOOL_BACKEND=malloc silences this warning",
        device.ordinal());
  }
  // Only now, so that this request has what it would have without cupool.
  const bool nearly_full = result == CUDA_ERROR_OUT_OF_MEMORY;
  if (nearly_full && plain == CUDA_SUCCESS) out_of_memory_.make_spare_streams(context);
  return plain;
}

// The last of the device's memory, for the pools.
CUresult Allocations::allocate_last(Context& context, std::uint64_t capacity, Fresh* fresh) {
  const ContextVisit visit(context);
  if (!visit) return CUDA_ERROR_OUT_OF_MEMORY;
  *fresh = {0, BlockSource::pool, context.incarnation()};
  return context.device().backend().allocate_last(context, capacity, &fresh->address);
}

// The context may have ended since the driver's call, and be another one by now.
CUdeviceptr Allocations::adopt(Context& context, std::uint64_t bytes, const Fresh& fresh) {
  const auto [address, source, life] = fresh;
  const std::uint64_t capacity = capacity_for(bytes);
  Device& device = context.device();
  const std::uint64_t alignment =
      is_large(capacity) && !device.limits().use_default_pool ? kLargeUnit : kAlignment;
  const ContextVisit visit(context);
  if (!visit || context.incarnation() != life) {  // plain memory is gone with the context
    if (source == BlockSource::pool) device.orphans().add(address);
    return 0;
  }
  Block* block = address % alignment == 0 ? new_block() : nullptr;
  if (block == nullptr) {  // misaligned (contract 6), or out of host memory
    device.backend_of(source).release(context, address);
    return 0;
  }
  block->address = address;
  block->capacity = capacity;
  block->requested = 0;
  block->context = &context;
  block->source = source;
  if (!is_large(capacity)) {
    block->kind = kind_of_small(small_class(capacity), source == BlockSource::pool);
  }
  // Not live before it is the program's: a stray free of this address is refused until then.
  block->state.store(BlockState::cached, std::memory_order_relaxed);
  Block* const stale = add_block(blocks_, block);
  if (stale == block) {  // out of host memory
    delete_block(block);
    device.backend_of(source).release(context, address);
    return 0;
  }
  if (stale != nullptr) {
    if (stale->source == BlockSource::passed_through) {
      count_passed(stale->context->stats(), *stale, -1);
      delete_block(stale);
    } else {
      CUPOOL_WARN_ONCE(
          "the program freed a block by a route that cupool does not see (such as RTLD_DEEPBIND); "
          "the report counts this block as live");
    }
  }
  DeviceStats& stats = context.stats();
  stats.add(Counter::growth_total);
  stats.add(Counter::growth_bytes_total, capacity);
  stats.gauge_add(Gauge::held_bytes, signed_bytes(capacity));
  count_plain(stats, *block, +1);
  stats::note_event(EventKind::growth, stats, capacity);
  return make_live(*block, bytes);
}

// In a visit.
CUdeviceptr Allocations::make_live(Block& block, std::uint64_t bytes) {
  block.requested = bytes;
  count_live(block.context->stats(), block, +1);
  return hand_over(block, bytes);
}

}  // namespace cupool::engine
