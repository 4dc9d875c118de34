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

// An allocation waits for the GPU only where the driver's would have failed, and not without end.
constexpr std::uint64_t kLongestWaitInMallocNs = 10'000'000'000;

// Bytes that a thread takes over from the shared cache at once, and up to which its first batches
// may grow by fresh memory.
constexpr std::uint64_t kRefillBytes = 8ull << 20;
// Bytes by which a thread's figures may differ from what the statistics know.
constexpr std::int64_t kLargestTally = 1 << 20;

// One more for the time of a scope.
class Counted {
 public:
  explicit Counted(std::atomic<int>& count) : count_(count) {
    count_.fetch_add(1, std::memory_order_acq_rel);
  }
  ~Counted() { count_.fetch_sub(1, std::memory_order_acq_rel); }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<int>& count_;
};

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
      context->drain_threads(true);
      BlockList idle = context->cache().evict_to(0);
      release(*context, idle);
    }
  }
}

bool Allocator::can_serve(Context& context, std::uint64_t bytes) const {
  const Device& device = context.device();
  return context.usable() && serving_.load(std::memory_order_relaxed) &&
         bytes <= device.limits().max_block && bytes <= device.total_bytes();
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
  const std::uint64_t capacity = capacity_for(bytes);
  Counter served_by = Counter::served_shared_cache_total;
  Block* block = take_quiet_block(*context, capacity);
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

// The hot path: from what the thread has to itself. One call in 63 is timed, and stands for all.
Block* Allocator::take_own(Context& context, std::uint64_t bytes) {
  ThreadCache* cache = thread_cache(context);
  if (cache == nullptr) return nullptr;
  const bool timed = is_timed();
  const std::uint64_t start = timed ? util::now_ns() : 0;
  const std::uint64_t capacity = capacity_for(bytes);
  Block* block = nullptr;
  {
    const ThreadCache::Guard guard(*cache);
    block = cache->take(capacity);
    if (block == nullptr) return nullptr;
    Tally& tally = cache->tally;
    ++tally.mallocs;
    tally.malloc_bytes += bytes;
    tally.sizes.record(bytes);
    tally.application += signed_bytes(bytes);
    if (tally.application > tally.application_high) tally.application_high = tally.application;
    tally.rounding += signed_bytes(block->capacity - bytes);
    tally.cached -= signed_bytes(block->capacity);
    if (tally.application > kLargestTally) tally.fold(context.stats());
  }
  block->requested = bytes;
  block->state.store(BlockState::live, std::memory_order_release);
  if (timed) context.stats().malloc_time().record(util::now_ns() - start, kTimedShare);
  return block;
}

// Idle bytes that a thread may keep to itself: all threads together, no more than may be pending.
std::uint64_t Allocator::most_own_bytes(Context& context) const {
  constexpr std::uint64_t kMost = 64ull << 20;
  const std::uint64_t threads = std::max<std::size_t>(context.thread_caches().in_use(), 1);
  return std::min(kMost, context.device().limits().max_pending / threads);
}

// From the shared cache, with more of the kind for the next calls of this thread.
Block* Allocator::take_shared(Context& context, std::uint64_t capacity) {
  Block* block = context.cache().take(capacity);
  ThreadCache* cache = block == nullptr ? nullptr : thread_cache(context);
  if (cache == nullptr) return block;
  const std::uint64_t fitting = kRefillBytes / block->capacity;
  const std::size_t most = std::min<std::uint64_t>(fitting, cache->refill());
  if (most < 2) return block;
  BlockList more = context.cache().take_more(block->capacity, most);
  {
    const ThreadCache::Guard guard(*cache);
    cache->keep(more, most_own_bytes(context));
  }
  if (!more.empty()) context.cache().put(more);
  return block;
}

// From what others gave back; else from epochs that have become quiet; else from this thread's own
// batch and the open epoch, which an idle GPU is done with as soon as it is asked. But while a
// batch is small, fresh memory lets it grow, so that a fence can serve many.
Block* Allocator::take_quiet_block(Context& context, std::uint64_t capacity) {
  Block* block = take_shared(context, capacity);
  for (const bool close_open : {false, true}) {
    if (block != nullptr) break;
    if (close_open) {
      const bool over_budget =
          held_bytes(context.stats()) + capacity > context.device().footprint_budget();
      ThreadCache* cache = thread_cache(context);
      const std::uint64_t waiting = cache == nullptr ? 0 : cache->batch_bytes();
      if (over_budget) {
        context.drain_threads(false);
      } else if (waiting != 0) {
        if (waiting + capacity <= kRefillBytes) break;
        context.fence_own(*cache);
      }
    }
    if (context.ordering().pending_bytes() == 0) continue;
    BlockList quiet;
    const CUresult result = context.ordering().poll(close_open, &quiet);
    if (result != CUDA_SUCCESS) note_failure(context, result);
    if (quiet.empty()) continue;
    keep(context, quiet);
    block = take_shared(context, capacity);
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
  device.preallocate_once(context);
  release_ended_leases();
  if (held_bytes(stats) + capacity > device.footprint_budget()) {
    // What lies with other threads counts as well.
    context.drain_threads(true);
    if (Block* block = context.cache().take(capacity)) {
      stats.gauge_add(Gauge::cached_bytes, -signed_bytes(block->capacity));
      return block;
    }
    BlockList others = context.cache().evict_for(capacity);
    release(context, others);
  }

  CUdeviceptr address = 0;
  BlockSource source = BlockSource::pool;
  CUresult result = allocate_fresh(context, capacity, &address, &source);
  // More than once, since other threads free, take what was given back, or have idle blocks on
  // their way to the driver, at the same time.
  constexpr int kRounds = 64;
  const bool ran_out = result == CUDA_ERROR_OUT_OF_MEMORY;
  for (int round = 0; result == CUDA_ERROR_OUT_OF_MEMORY && round < kRounds; ++round) {
    const bool any = give_back_idle(context);
    if (any) result = allocate_fresh(context, capacity, &address, &source);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      source = BlockSource::pool;
      result = device.allocate_last(context, capacity, &address);
    }
    if (any || result != CUDA_ERROR_OUT_OF_MEMORY) continue;
    if (giving_back_.load(std::memory_order_acquire) == 0) break;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
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

void Allocator::keep_quiet(Context& context) {
  BlockList quiet = context.ordering().take_quiet();
  if (!quiet.empty()) keep(context, quiet);
}

// Puts quiet blocks into the cache; those that other agents may know, and what is beyond
// CUPOOL_MAX_CACHED, go back to the backend.
void Allocator::keep(Context& context, BlockList& quiet) {
  look_for_agents();
  DeviceStats& stats = context.stats();
  BlockList unwanted;
  BlockList own;
  while (Block* block = quiet.pop()) {
    if (is_leased(*block)) continue;  // retired until release_ended_leases()
    const bool shared = block->shared_outside.load(std::memory_order_relaxed) &&
                        !CUPOOL_MUTATED("shared-served-again");
    const bool wanted = !shared && context.device().keeps(*block);
    (wanted ? own : unwanted).push(block);
  }
  stats.gauge_add(Gauge::retired_bytes, -signed_bytes(own.bytes + unwanted.bytes));
  stats.gauge_add(Gauge::cached_bytes, signed_bytes(own.bytes + unwanted.bytes));
  context.cache().put(own);
  if (!unwanted.empty()) release(context, unwanted);
  if (host_reachable_.any(HostReachable::Kind::managed)) leave_room_for_managed(context);
  const std::uint64_t allowed = context.device().limits().max_cached;
  if (context.cache().bytes() > allowed) {
    BlockList excess = context.cache().evict_to(allowed);
    release(context, excess);
  }
}

// Gives blocks that count as cached back to the backend.
void Allocator::release(Context& context, BlockList& idle) {
  if (idle.empty()) return;
  const Counted giving_back(giving_back_);
  DeviceStats& stats = context.stats();
  std::vector<CUdeviceptr> refused;
  stats.gauge_add(Gauge::cached_bytes, -signed_bytes(idle.bytes));
  stats.gauge_add(Gauge::held_bytes, -signed_bytes(idle.bytes));
  stats.add(Counter::returned_blocks_total, idle.count);
  stats.add(Counter::returned_bytes_total, idle.bytes);
  stats::note_event(EventKind::give_back, stats, idle.bytes);
  while (Block* block = idle.pop()) {
    const CUdeviceptr address = block->address;
    const BlockSource source = block->source;
    // Out of the map first: the driver may hand the address out again at once.
    blocks_.erase(block);
    delete_block(block);
    // A refusal may pass; what is refused twice is tried once more with other lost memory.
    Backend& backend = context.device().backend_of(source);
    const bool released = backend.release(context, address) || backend.release(context, address);
    if (!released && source == BlockSource::pool) refused.push_back(address);
  }
  if (!refused.empty()) context.device().add_orphans(refused);
}

bool Allocator::give_back_idle(Context& context) {
  if (!serving_.load(std::memory_order_relaxed)) return false;
  const Counted giving_back(giving_back_);
  Device& device = context.device();
  const auto returned = [&] { return device.stats().value(Counter::returned_bytes_total); };
  const std::uint64_t returned_before = returned();
  bool any = release_ended_leases();
  for (Context* other : registry_.contexts_of(device.ordinal())) {
    if (!other->usable()) continue;
    other->drain_threads(true);
    const CUresult result = other->ordering().wait_for_all(nullptr, kLongestWaitInMallocNs);
    if (result != CUDA_SUCCESS) {
      note_failure(*other, result);
      continue;
    }
    keep_quiet(*other);
    BlockList idle = other->cache().evict_to(0);
    release(*other, idle);
    device.release_orphans(*other);
    const std::uint64_t before = device.pool_figures().reserved_current;
    device.trim(*other);
    device.stats().add(Counter::trims_total);
    stats::note_event(EventKind::trim, device.stats(), 0);
    any = any || device.pool_figures().reserved_current < before;
  }
  // Of the cache, and what was never kept in it: for that, memory is given back as soon as it is
  // quiet.
  return any || returned() != returned_before;
}

// Whether memory has gone back to the device that a call which ran out of it did not find: here, or
// by another thread that had idle blocks in its hands.
bool Allocator::more_given_back(Context& context) {
  const bool by_others = giving_back_.load(std::memory_order_acquire) != 0;
  if (give_back_idle(context)) return true;
  if (by_others) std::this_thread::sleep_for(std::chrono::microseconds(100));
  return by_others;
}

void Allocator::stop_serving() {
  if (!serving_.exchange(false, std::memory_order_relaxed)) return;
  CUPOOL_WARN_ONCE(
      "the program uses green contexts, which events of a context do not cover: the driver serves "
      "its memory from now on");
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
