// Serving: from the cache, from what has become quiet, or fresh. Read with docs/design.md, sections
// Contract, Engine and Invariants.
#include "core/allocator.h"

#include <initializer_list>

#include "core/accounting.h"
#include "core/agents.h"
#include "cuda/errors.h"
#include "util/clock.h"
#include "util/log.h"

namespace cupool::core {

using stats::Counter;
using stats::DeviceStats;
using stats::Gauge;

namespace {

// An allocation waits for the GPU only where the driver's would have failed, and not without end.
constexpr std::uint64_t kLongestWaitInMallocNs = 10'000'000'000;

// With a library in the process that lets other agents into device memory, `auto` means plain
// memory and frees that wait: what the library was written for.
config::Settings settle(const config::Settings& asked) {
  config::Settings settled = asked;
  const char* library = loaded_agent_library();
  if (library == nullptr) return settled;
  if (settled.backend == config::Backend::automatic) settled.backend = config::Backend::malloc;
  if (settled.free_mode == config::FreeMode::automatic) settled.free_mode = config::FreeMode::sync;
  CUPOOL_LOG(info, "%s is loaded: serving plain memory, frees wait", library);
  return settled;
}
void count_malloc(DeviceStats& stats, std::uint64_t bytes, Counter served_by,
                  std::uint64_t start_ns) {
  stats.add(Counter::malloc_calls_total);
  stats.add(Counter::malloc_requested_bytes_total, bytes);
  stats.add(served_by);
  stats.malloc_time().record(util::now_ns() - start_ns);
}

}  // namespace

Allocator::Allocator(const cuda::Driver& driver, const config::Settings& settings)
    : driver_(driver), settings_(settle(settings)), registry_(driver, settings_) {}

std::optional<CUresult> Allocator::try_allocate(std::uint64_t bytes, CUdeviceptr* address) {
  if (bytes == 0 || address == nullptr) return std::nullopt;
  const std::uint64_t start = util::now_ns();
  Context* context = registry_.current();
  if (context == nullptr || !context->usable() || !serving_.load(std::memory_order_relaxed)) {
    return std::nullopt;
  }
  Device& device = context->device();
  if (bytes > device.limits().max_block || bytes > device.total_bytes()) return std::nullopt;

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
  const std::uint64_t start = util::now_ns();
  if (!context.usable() || !serving_.load(std::memory_order_relaxed) ||
      bytes > context.device().limits().max_block || bytes > context.device().total_bytes()) {
    return false;
  }
  Block* block = take_quiet_block(context, capacity_for(bytes));
  if (block == nullptr) return false;
  make_live(*block, bytes);
  *address = block->address;
  count_malloc(context.stats(), bytes, Counter::served_shared_cache_total, start);
  return true;
}

// From the cache; else from epochs that have become quiet; else from the open one, which an idle
// GPU is done with as soon as it is asked.
Block* Allocator::take_quiet_block(Context& context, std::uint64_t capacity) {
  Block* block = context.cache().take(capacity);
  for (const bool close_open : {false, true}) {
    if (block != nullptr || context.ordering().pending_bytes() == 0) break;
    BlockList quiet;
    const CUresult result = context.ordering().poll(close_open, &quiet);
    if (result != CUDA_SUCCESS) note_failure(context, result);
    if (quiet.empty()) continue;
    keep(context, quiet);
    block = context.cache().take(capacity);
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
  device.preallocate_once(context);
  const auto held = static_cast<std::uint64_t>(stats.value(Gauge::held_bytes).current);
  if (held + capacity > device.footprint_budget()) {
    BlockList others = context.cache().evict_for(capacity);
    release(context, others);
  }

  CUdeviceptr address = 0;
  CUresult result = device.backend().allocate(context, capacity, &address);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && give_back_idle(context)) {
    result = device.backend().allocate(context, capacity, &address);
    if (result == CUDA_SUCCESS) stats.add(Counter::oom_rescues_total);
  }
  if (result != CUDA_SUCCESS) {
    note_failure(context, result);
    if (result != CUDA_ERROR_OUT_OF_MEMORY && !cuda::is_sticky(result)) {
      CUPOOL_WARN_ONCE(
          "the driver refused pool memory with error %d; such allocations go to cuMemAlloc "
          "(CUPOOL_BACKEND=malloc avoids the attempt)",
          static_cast<int>(result));
    }
    return nullptr;
  }
  return adopt(context, capacity, address);
}

Block* Allocator::adopt(Context& context, std::uint64_t capacity, CUdeviceptr address) {
  Device& device = context.device();
  const std::uint64_t alignment =
      is_large(capacity) && !device.limits().use_default_pool ? kLargeUnit : kAlignment;
  Block* block = address % alignment == 0 ? new_block() : nullptr;
  if (block == nullptr) {  // contract 6 would be broken, or host memory is at its end
    device.backend().release(context, address);
    return nullptr;
  }
  block->address = address;
  block->capacity = capacity;
  block->requested = 0;
  block->context = &context;
  block->source = device.backend().source();
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
  DeviceStats& stats = context.stats();
  stats.gauge_add(Gauge::retired_bytes, -signed_bytes(quiet.bytes));
  stats.gauge_add(Gauge::cached_bytes, signed_bytes(quiet.bytes));
  BlockList shared;
  BlockList own;
  while (Block* block = quiet.pop()) {
    (block->shared_outside.load(std::memory_order_relaxed) ? shared : own).push(block);
  }
  context.cache().put(own);
  if (!shared.empty()) release(context, shared);
  const std::uint64_t allowed = context.device().limits().max_cached;
  if (context.cache().bytes() > allowed) {
    BlockList excess = context.cache().evict_to(allowed);
    release(context, excess);
  }
}

// Gives blocks that count as cached back to the backend.
void Allocator::release(Context& context, BlockList& idle) {
  if (idle.empty()) return;
  DeviceStats& stats = context.stats();
  std::vector<CUdeviceptr> refused;
  stats.gauge_add(Gauge::cached_bytes, -signed_bytes(idle.bytes));
  stats.gauge_add(Gauge::held_bytes, -signed_bytes(idle.bytes));
  stats.add(Counter::returned_blocks_total, idle.count);
  stats.add(Counter::returned_bytes_total, idle.bytes);
  while (Block* block = idle.pop()) {
    const CUdeviceptr address = block->address;
    // Out of the map first: the driver may hand the address out again at once.
    blocks_.erase(block);
    delete_block(block);
    if (!context.device().backend().release(context, address)) refused.push_back(address);
  }
  if (!refused.empty()) context.device().add_orphans(refused);
}

bool Allocator::give_back_idle(Context& context) {
  if (!serving_.load(std::memory_order_relaxed)) return false;
  Device& device = context.device();
  bool any = false;
  for (Context* other : registry_.contexts_of(device.ordinal())) {
    if (!other->usable()) continue;
    const CUresult result = other->ordering().wait_for_all(nullptr, kLongestWaitInMallocNs);
    if (result != CUDA_SUCCESS) {
      note_failure(*other, result);
      continue;
    }
    keep_quiet(*other);
    BlockList idle = other->cache().evict_to(0);
    any = any || !idle.empty();
    release(*other, idle);
    const std::uint64_t before = device.backend().figures().reserved_current;
    device.backend().trim(*other);
    device.stats().add(Counter::trims_total);
    any = any || device.backend().figures().reserved_current < before;
  }
  return any;
}

void Allocator::stop_serving() {
  if (!serving_.exchange(false, std::memory_order_relaxed)) return;
  CUPOOL_WARN_ONCE(
      "the program uses green contexts, which events of a context do not cover: the driver serves "
      "its memory from now on");
}

void Allocator::note_failure(Context& context, CUresult result) {
  if (cuda::is_sticky(result)) {
    context.set_poisoned();
    CUPOOL_LOG(info, "error %d is there to stay: everything in this context passes through",
               static_cast<int>(result));
  } else if (result == CUDA_ERROR_DEINITIALIZED) {
    cuda::note_shut_down();
  }
}

}  // namespace cupool::core
