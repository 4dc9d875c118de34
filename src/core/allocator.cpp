// Serving: from the cache, from what has become quiet, or fresh. Read with docs/design.md, sections
// Contract, Engine and Invariants.
#include "core/allocator.h"

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <thread>

#include "core/accounting.h"
#include "core/agents.h"
#include "cuda/errors.h"
#include "stats/timeline.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mutation.h"

namespace cupool::core {

using stats::Counter;
using stats::DeviceStats;
using stats::EventKind;
using stats::Gauge;

namespace {

// Bytes that a thread takes over from the shared cache at once, and up to which its first batches
// may grow by fresh memory.
constexpr std::uint64_t kRefillBytes = BlockCache::kMostChainBytes;
// Batches that a thread may have waiting before it needs those of other threads' fences. Chosen
// together with the bytes of a batch (limits_of_thread()), and not measured apart from them.
constexpr std::uint64_t kBatchesWaiting = 8;

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
  stats.malloc_time().record(util::now_ns() - start_ns);
}

}  // namespace

Allocator::Allocator(const cuda::Driver& driver, const config::Settings& settings)
    : driver_(driver),
      settings_(settings),
      registry_(driver, settings_),
      imports_(driver),
      free_mode_(settings.free_mode) {
  look_for_agents();
}

// With a library in the process that lets other agents into device memory, `auto` means plain
// memory and frees that wait: what the library was written for. One that is loaded later is noticed
// at the next fresh block or fence; what lies in the cache then goes back first.
void Allocator::look_for_agents() {
  const bool concerned = settings_.backend == config::Backend::automatic ||
                         settings_.free_mode == config::FreeMode::automatic;
  if (!concerned || agents_found_.load(std::memory_order_relaxed) || !libraries_were_added()) {
    return;
  }
  const char* library = loaded_agent_library();
  if (library == nullptr || agents_found_.exchange(true, std::memory_order_relaxed)) return;
  CUPOOL_LOG(info, "%s is loaded: serving plain memory, frees wait", library);
  if (settings_.free_mode == config::FreeMode::automatic) {
    free_mode_.store(config::FreeMode::sync, std::memory_order_relaxed);
  }
  if (settings_.backend != config::Backend::automatic) return;
  registry_.use_plain_memory();
  for (Device* device : registry_.devices()) {
    for (Context* context : registry_.contexts_of(device->ordinal())) {
      if (!context->usable()) continue;
      context->drain_threads(Context::Drain::all);
      BlockList idle = context->cache().evict_to(0);
      release(*context, idle);
    }
  }
}

inline bool Allocator::can_serve(Context& context, std::uint64_t bytes) const {
  const Device& device = context.device();
  return context.usable() && serving_.load(std::memory_order_relaxed) &&
         bytes <= device.limits().max_block && bytes <= device.total_bytes();
}

[[gnu::always_inline]] inline Block* Allocator::take_counted(Context& context, ThreadCache& cache,
                                                             std::uint64_t bytes) {
  const ThreadCache::Guard guard(cache);
  Block* block = cache.take(bytes);
  if (block == nullptr) return nullptr;
  Tally& tally = cache.tally;
  tally.count_malloc(bytes, block->capacity);
  if (tally.is_due(cache.limits.tally)) tally.fold(context.stats());
  return block;
}

// The hot path: from what the thread has to itself. One call in 63 is timed, and stands for all.
[[gnu::always_inline]] inline Block* Allocator::take_own(Context& context, std::uint64_t bytes) {
  ThreadCache* cache = thread_cache(context);
  if (cache == nullptr) return nullptr;
  const bool timed = is_timed();
  const std::uint64_t start = timed ? util::now_ns() : 0;
  Block* block = take_counted(context, *cache, bytes);
  if (block == nullptr && (block = collect_and_take(context, *cache, bytes)) == nullptr) {
    return nullptr;
  }
  block->requested = bytes;
  block->state.store(BlockState::live, std::memory_order_release);
  if (timed) context.stats().malloc_time().record(util::now_ns() - start, kTimedShare);
  return block;
}

// Whether the driver serves because the pools are still to be started. While a stream captures, it
// could refuse; what a pool gives does no harm.
bool Allocator::pools_are_awaited(Device& device) {
  if (device.pools_are_started() || Ordering::any_capture()) return false;
  if (device.wants_pools_started()) wake_starter_.load(std::memory_order_relaxed)();
  return !device.wait_for_start();
}

std::optional<CUresult> Allocator::try_allocate(std::uint64_t bytes, CUdeviceptr* address) {
  if (bytes == 0 || address == nullptr) return std::nullopt;
  Context* context = registry_.current();
  if (context == nullptr) return std::nullopt;
  if (can_serve(*context, bytes)) {
    if (Block* block = take_own(*context, bytes)) {
      *address = block->address;
      return CUDA_SUCCESS;
    }
  }
  const std::uint64_t start = util::now_ns();
  context = registry_.ask_for_current(context);
  if (context == nullptr || !can_serve(*context, bytes)) return std::nullopt;
  if (pools_are_awaited(context->device())) return std::nullopt;
  const std::uint64_t capacity = capacity_for(bytes);
  Counter served_by = Counter::served_shared_cache_total;
  Block* block = take_quiet_block(*context, capacity, &served_by);
  if (block == nullptr) {
    served_by = Counter::served_fresh_total;
    block = fresh_block(*context, capacity);
    if (block == nullptr) return std::nullopt;
  }
  make_live(*block, bytes);
  *address = block->address;
  count_malloc(context->stats(), bytes, served_by, start);
  return CUDA_SUCCESS;
}

bool Allocator::try_allocate_cached(Context& context, std::uint64_t bytes, CUdeviceptr* address) {
  if (!can_serve(context, bytes)) return false;
  Block* block = take_own(context, bytes);
  if (block == nullptr) return false;
  *address = block->address;
  return true;
}

[[gnu::noinline]] Block* Allocator::collect_and_take(Context& context, ThreadCache& cache,
                                                     std::uint64_t bytes) {
  return collect(context, cache) ? take_counted(context, cache, bytes) : nullptr;
}

// The batches of this thread that have become quiet are its own to hand out, and the one that it is
// filling if the program has waited for it. False: there are none.
bool Allocator::collect(Context& context, ThreadCache& cache, ThreadCache::BatchNumber waited_for) {
  if (!serving_.load(std::memory_order_relaxed)) return false;
  Device& device = context.device();
  BlockList surplus;
  {
    const ThreadCache::Guard guard(cache);
    const EpochNumber quiet_up_to = context.ordering().quiet_up_to();
    const bool batch_is_quiet = cache.is_filling(waited_for);
    if (!batch_is_quiet && !cache.oldest_is_quiet(quiet_up_to)) return false;
    const auto unfit = [&](const Block& block) { return !is_wanted(device, block); };
    if (batch_is_quiet) cache.collect_batch(&surplus, unfit);
    cache.collect(quiet_up_to, &surplus, unfit);
  }
  if (!surplus.empty()) {
    keep(context, surplus);
  } else if (host_reachable_.any(HostReachable::Kind::managed)) {
    leave_room_for_managed(context);
  }
  return true;
}

// What one thread may have to itself. Batches of all threads together stay below a quarter of what
// may be pending, by which the bound on what has joined an epoch is lowered. Who lets much be
// pending (the realtime profile) gets batches so large that fewer than one call in a thousand ends
// one.
ThreadCache::Limits Allocator::limits_of_thread(Context& context) const {
  constexpr std::uint64_t kMostQuiet = 64ull << 20;
  constexpr std::uint64_t kLargestBatch = 16ull << 20;
  constexpr std::uint64_t kLargestOfFew = 64ull << 20;
  constexpr std::size_t kManyBlocks = 2048;
  constexpr std::uint64_t kLeastTally = 1ull << 20;
  constexpr std::uint64_t kLargestTally = 8ull << 20;
  const Device::Limits& all = context.device().limits();
  const std::uint64_t threads = std::max<std::size_t>(context.thread_caches().in_use(), 1);
  ThreadCache::Limits limits;
  const bool much = all.max_pending > context.device().total_bytes() / 8;
  if (much) limits.blocks = kManyBlocks;
  limits.few = std::min(all.max_pending / std::max<std::uint64_t>(16, 4 * threads),
                        much ? std::max(kLargestOfFew, all.max_pending / 1024) : kLargestOfFew);
  limits.batch =
      std::min(limits.few, much ? std::max(kLargestBatch, all.max_pending / 1024) : kLargestBatch);
  // What waits may all become quiet at once.
  limits.quiet = std::min({std::max(kMostQuiet, kBatchesWaiting * limits.batch),
                           all.max_pending / threads, all.max_cached / threads});
  limits.tally = signed_bytes(std::clamp(limits.batch, kLeastTally, kLargestTally));
  return limits;
}

// From the shared cache, with more of the kind for the next calls of this thread.
Block* Allocator::take_shared(Context& context, ThreadCache* cache, std::uint64_t capacity) {
  if (!context.cache().may_have(capacity)) return nullptr;
  if (cache == nullptr) return context.cache().take(capacity);
  std::size_t refill = 0;
  {
    const ThreadCache::Guard guard(*cache);
    refill = cache->refill();
  }
  BlockList more;
  Block* block = context.cache().take(capacity, refill, kRefillBytes, &more);
  if (more.empty()) return block;
  {
    const ThreadCache::Guard guard(*cache);
    cache->limits = limits_of_thread(context);
    cache->keep(more);
  }
  if (!more.empty()) context.cache().put(more);
  return block;
}

// For a thread with little of its own that waits, nothing is done while other threads are at it,
// and no thread that has a cache stands in a queue.
CUresult Allocator::poll(Context& context, ThreadCache* cache, bool may_grow, bool close_open,
                         BlockList* quiet) {
  Ordering& ordering = context.ordering();
  if (cache == nullptr) return ordering.poll(close_open, quiet);
  if (may_grow) return ordering.try_poll(close_open, quiet);
  EpochNumber oldest = 0;
  {
    const ThreadCache::Guard guard(*cache);
    oldest = cache->oldest_in_flight();
  }
  return ordering.poll_unless_quiet(oldest, close_open, quiet);
}

// From what others gave back; else from epochs that have become quiet; else from this thread's own
// batch and the open epoch, which an idle GPU is done with as soon as it is asked. But while a
// thread waits for little, fresh memory lets it grow, so that a fence can serve many; and for
// somewhat more where other threads are at a fence just then, so that nobody stands in a queue.
Block* Allocator::take_quiet_block(Context& context, std::uint64_t capacity, Counter* served_by) {
  ThreadCache* cache = thread_cache(context);
  Ordering& ordering = context.ordering();
  Block* block = take_shared(context, cache, capacity);
  for (const bool close_open : {false, true}) {
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
      in_flight = cache->has_in_flight();
    }
    const bool over_budget =
        held_bytes(context.stats()) + capacity > context.device().footprint_budget();
    if (close_open) {
      if (over_budget) {
        context.drain_threads(Context::Drain::retired);
      } else if (waiting != 0) {
        if (waiting + capacity <= enough) break;
        context.drain(*cache, Context::Drain::join);
        const ThreadCache::Guard guard(*cache);
        cache->expect_free();
        in_flight = true;
      }
    }
    if (!in_flight && !ordering.holds_blocks()) continue;
    BlockList quiet;
    const CUresult result =
        poll(context, over_budget ? nullptr : cache, may_grow, close_open, &quiet);
    if (result != CUDA_SUCCESS) note_failure(context, result);
    if (!quiet.empty()) keep(context, quiet);
    if (cache != nullptr && collect(context, *cache)) {
      const ThreadCache::Guard guard(*cache);
      block = cache->take(capacity);  // a request of its own capacity
      if (block != nullptr) *served_by = Counter::served_thread_cache_total;
    }
    if (block == nullptr) block = take_shared(context, cache, capacity);
  }
  if (block != nullptr) {
    context.stats().gauge_add(Gauge::cached_bytes, -signed_bytes(block->capacity));
  }
  return block;
}

// Fresh memory of the backend; where there is none, what other sizes and other contexts have idle
// is given back first. Null: the real call has to decide.
Block* Allocator::fresh_block(Context& context, std::uint64_t capacity) {
  Device& device = context.device();
  DeviceStats& stats = context.stats();
  look_for_agents();
  preallocate(context);
  release_ended_leases();
  if (held_bytes(stats) + capacity > device.footprint_budget()) {
    // What lies with other threads counts as well.
    context.drain_threads(Context::Drain::all);
    keep_quiet(context);
    Block* block = context.cache().take(capacity);
    if (block != nullptr) stats.gauge_add(Gauge::cached_bytes, -signed_bytes(block->capacity));
    // Even then, lest every miss comes here from now on.
    BlockList others = context.cache().evict_for(capacity);
    const bool other_kind =
        !others.empty() && is_large(others.head->capacity) != is_large(capacity);
    release(context, others);
    // Its pool would keep the memory from the one that has to grow.
    if (other_kind) {
      device.trim(context);
      stats.add(Counter::trims_total);
      stats::note_event(EventKind::trim, stats, 0);
    }
    if (block != nullptr) return block;
  }

  CUdeviceptr address = 0;
  BlockSource source = BlockSource::pool;
  std::uint64_t tried_ns = util::now_ns();
  CUresult result = allocate_fresh(context, capacity, &address, &source);
  // More than once, since other threads free, take what was given back, or have idle blocks on
  // their way to the driver, at the same time.
  const bool ran_out = result == CUDA_ERROR_OUT_OF_MEMORY;
  for (int round = 0; result == CUDA_ERROR_OUT_OF_MEMORY && round < kRetries; ++round) {
    const bool any = more_given_back(context, &tried_ns);
    if (any) result = allocate_fresh(context, capacity, &address, &source);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      source = BlockSource::pool;
      result = device.allocate_last(context, capacity, &address);
    }
    if (!any) break;
  }
  if (ran_out && result == CUDA_SUCCESS) {
    stats.add(Counter::oom_rescues_total);
    stats::note_event(EventKind::oom_rescue, stats, capacity);
  }
  if (result != CUDA_SUCCESS) {
    note_failure(context, result);
    if (result != CUDA_ERROR_OUT_OF_MEMORY && !cuda::is_sticky(result) && !cuda::shut_down()) {
      CUPOOL_WARN_ONCE(
          "the driver refused pool memory with error %d; such allocations go to cuMemAlloc "
          "(CUPOOL_BACKEND=malloc avoids the attempt)",
          static_cast<int>(result));
    }
    return nullptr;
  }
  return adopt(context, capacity, address, source);
}

// From the pools; near the device's limit, where their growth would leave too little, plain memory,
// of which the driver takes no more than it needs. With CUPOOL_MAX_SIZE the rest passes through.
// Where the driver says that it has pools and then refuses them (vGPU), plain memory from now on.
CUresult Allocator::allocate_fresh(Context& context, std::uint64_t capacity, CUdeviceptr* address,
                                   BlockSource* source) {
  Device& device = context.device();
  Backend& backend = device.backend();
  *source = backend.source();
  const CUresult result = backend.allocate(context, capacity, address);
  if (*source != BlockSource::pool) return result;
  if (result == CUDA_ERROR_NOT_SUPPORTED) {
    CUPOOL_WARN_ONCE(
        "the pools of device %d cannot be used; serving from cuMemAlloc instead "
        "(CUPOOL_BACKEND=malloc says so)",
        device.ordinal());
    device.use_plain_memory();
  } else if (result != CUDA_ERROR_OUT_OF_MEMORY || device.limits().max_size != 0) {
    return result;
  }
  *source = BlockSource::malloc;
  return device.plain().allocate(context, capacity, address);
}

Block* Allocator::adopt(Context& context, std::uint64_t capacity, CUdeviceptr address,
                        BlockSource source) {
  Device& device = context.device();
  const std::uint64_t alignment =
      is_large(capacity) && !device.limits().use_default_pool ? kLargeUnit : kAlignment;
  Block* block = address % alignment == 0 ? new_block() : nullptr;
  if (block == nullptr) {  // contract 6 would be broken, or host memory is at its end
    device.backend_of(source).release(context, address);
    return nullptr;
  }
  block->address = address;
  block->capacity = capacity;
  block->requested = 0;
  block->context = &context;
  block->source = source;
  if (!is_large(capacity)) {
    block->kind = kind_of_small(small_class(capacity), source == BlockSource::pool);
  }
  // Not live before it is handed out: a stray free of this address is refused until then.
  block->state.store(BlockState::quiet, std::memory_order_relaxed);
  if (Block* stale = blocks_.insert(block)) {
    if (stale->source == BlockSource::passed_through) {
      count_passed(stale->context->stats(), *stale, -1);
      delete_block(stale);
    } else {
      CUPOOL_WARN_ONCE("memory of cupool was freed by a route that it does not see");
    }
  }
  DeviceStats& stats = context.stats();
  stats.add(Counter::growth_total);
  stats.add(Counter::growth_bytes_total, capacity);
  stats.gauge_add(Gauge::held_bytes, signed_bytes(capacity));
  stats::note_event(EventKind::growth, stats, capacity);
  return block;
}

void Allocator::make_live(Block& block, std::uint64_t bytes) {
  block.requested = bytes;
  count_live(block.context->stats(), block, +1);
  block.state.store(BlockState::live, std::memory_order_release);
}

void Allocator::stop_serving(const char* reason) {
  if (!serving_.exchange(false, std::memory_order_relaxed)) return;
  CUPOOL_LOG(warn, "%s: the driver serves its memory from now on", reason);
}

void Allocator::note_failure(Context& context, CUresult result) {
  if (cuda::is_sticky(result)) {
    if (CUPOOL_MUTATED("sticky-serves-on")) return;
    context.set_poisoned();
    CUPOOL_LOG(info, "error %d is there to stay: everything in this context passes through",
               static_cast<int>(result));
  } else if (result == CUDA_ERROR_DEINITIALIZED) {
    cuda::note_shut_down();
  }
}

}  // namespace cupool::core
