// Serving and freeing. Read with docs/design.md, sections 2 and 4: contract and invariants.
#include "core/allocator.h"

#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "util/clock.h"
#include "util/log.h"

namespace cupool::core {

using stats::Counter;
using stats::DeviceStats;
using stats::Gauge;

namespace {

std::int64_t signed_bytes(std::uint64_t bytes) {
  return static_cast<std::int64_t>(bytes);
}

// The one place that says which gauges a block of ours counts in while it is live.
void count_live(DeviceStats& stats, const Block& block, std::int64_t sign) {
  stats.gauge_add(Gauge::application_bytes, sign * signed_bytes(block.requested));
  stats.gauge_add(Gauge::rounding_bytes, sign * signed_bytes(block.capacity - block.requested));
  stats.gauge_add(Gauge::device_bytes, sign * signed_bytes(block.requested));
}

void count_passed(DeviceStats& stats, const Block& block, std::int64_t sign) {
  stats.gauge_add(Gauge::passthrough_bytes, sign * signed_bytes(block.requested));
  stats.gauge_add(Gauge::device_bytes, sign * signed_bytes(block.requested));
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
    : driver_(driver), registry_(driver, settings) {}

std::optional<CUresult> Allocator::try_allocate(std::uint64_t bytes, CUdeviceptr* address) {
  if (bytes == 0 || address == nullptr) return std::nullopt;
  const std::uint64_t start = util::now_ns();
  Context* context = registry_.current();
  if (context == nullptr || !context->usable()) return std::nullopt;
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
  if (!context.usable() || bytes > context.device().limits().max_block ||
      bytes > context.device().total_bytes()) {
    return false;
  }
  Block* block = take_quiet_block(context, capacity_for(bytes));
  if (block == nullptr) return false;
  make_live(*block, bytes);
  *address = block->address;
  count_malloc(context.stats(), bytes, Counter::served_shared_cache_total, start);
  return true;
}

std::optional<CUresult> Allocator::try_free(CUdeviceptr address) {
  const std::uint64_t start = util::now_ns();
  Block* block = nullptr;
  if (const auto answer = take_from_program(address, &block)) return answer;
  if (block == nullptr) return std::nullopt;
  Context& context = *block->context;
  const CUresult result = wait_in_free(context, retire(*block));
  context.stats().free_time().record(util::now_ns() - start);
  return result;
}

std::optional<CUresult> Allocator::try_free_in_stream(CUdeviceptr address) {
  const std::uint64_t start = util::now_ns();
  Block* block = nullptr;
  if (const auto answer = take_from_program(address, &block)) return answer;
  if (block == nullptr) return std::nullopt;
  Context& context = *block->context;
  retire(*block);
  context.stats().free_time().record(util::now_ns() - start);
  return CUDA_SUCCESS;
}

// The part that all frees share. On return either the answer is known, or `*block` is the block
// that this thread has to retire; neither: not ours.
std::optional<CUresult> Allocator::take_from_program(CUdeviceptr address, Block** block) {
  Block* found = nullptr;
  const PointerMap::Claim claim = blocks_.claim(address, &found);
  if (claim == PointerMap::Claim::missing) return std::nullopt;
  DeviceStats& stats = found->context->stats();
  stats.add(Counter::free_calls_total);
  if (claim == PointerMap::Claim::unusable) {
    // I7: after a sticky error the driver answers; it does not free anything any more.
    return driver_.cuMemFree_v2(address);
  }
  if (claim == PointerMap::Claim::not_live) {
    stats.add(Counter::free_rejected_total);
    return CUDA_ERROR_INVALID_VALUE;
  }
  stats.add(Counter::free_bytes_total, found->requested);
  *block = found;
  return std::nullopt;
}

bool Allocator::is_live(CUdeviceptr address) {
  const Block* block = blocks_.find(address);
  return block != nullptr && block->source != BlockSource::passed_through &&
         block->state.load(std::memory_order_acquire) == BlockState::live &&
         block->context->usable();
}

EpochNumber Allocator::retire(Block& block) {
  Context& context = *block.context;
  count_live(context.stats(), block, -1);
  context.stats().gauge_add(Gauge::retired_bytes, signed_bytes(block.capacity));
  return context.ordering().retire(&block);
}

// CUPOOL_FREE_MODE=sync: the free waits for the context, as the driver's does; then the block is
// quiet.
CUresult Allocator::wait_in_free(Context& context, EpochNumber epoch) {
  DeviceStats& stats = context.stats();
  const std::uint64_t wait_start = util::now_ns();
  const CUresult result = context.ordering().wait(epoch);
  stats.add(Counter::free_waits_total);
  stats.add(Counter::free_wait_ns_total, util::now_ns() - wait_start);
  if (result == CUDA_SUCCESS) {
    keep_quiet(context);
    return CUDA_SUCCESS;
  }
  note_failure(context, result);
  if (cuda::is_sticky(result) || result == CUDA_ERROR_DEINITIALIZED) return result;
  // Our trouble, not the program's: the block stays retired and is not served again.
  CUPOOL_WARN_ONCE(
      "waiting for the GPU in a free failed with error %d; the block is kept aside. "
      "CUPOOL_ENABLE=0 turns cupool off",
      static_cast<int>(result));
  return CUDA_SUCCESS;
}

Block* Allocator::take_quiet_block(Context& context, std::uint64_t capacity) {
  Block* block = context.cache().take(capacity);
  if (block == nullptr) {
    BlockList quiet;
    context.ordering().poll(&quiet);
    if (quiet.empty()) return nullptr;
    keep(context, quiet);
    block = context.cache().take(capacity);
    if (block == nullptr) return nullptr;
  }
  context.stats().gauge_add(Gauge::cached_bytes, -signed_bytes(block->capacity));
  return block;
}

// Fresh memory of the backend; where there is none, what other sizes and other contexts have idle
// is given back first. Null: the real call has to decide.
Block* Allocator::fresh_block(Context& context, std::uint64_t capacity) {
  Device& device = context.device();
  DeviceStats& stats = context.stats();
  device.preallocate_once(context);
  BlockList others = context.cache().evict_for(capacity);
  release(context, others);

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
  Device& device = context.device();
  bool any = false;
  for (Context* other : registry_.contexts_of(device.ordinal())) {
    if (!other->usable()) continue;
    const CUresult result = other->ordering().wait_for_all();
    if (result != CUDA_SUCCESS) {
      note_failure(*other, result);
      continue;
    }
    keep_quiet(*other);
    BlockList idle = other->cache().evict_to(0);
    any = any || !idle.empty();
    release(*other, idle);
  }
  const stats::PoolFigures before = device.backend().figures();
  device.backend().trim(context);
  device.stats().add(Counter::trims_total);
  return any || device.backend().figures().reserved_current < before.reserved_current;
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

void Allocator::note_passed_allocation(Context* context, std::uint64_t bytes,
                                       const CUdeviceptr* address, CUresult result,
                                       std::uint64_t start_ns) {
  DeviceStats& stats = context == nullptr ? stats::device(-1) : context->stats();
  stats.add(Counter::malloc_calls_total);
  stats.malloc_time().record(util::now_ns() - start_ns);
  if (result != CUDA_SUCCESS || address == nullptr) {
    stats.add(Counter::malloc_failed_total);
    return;
  }
  stats.add(Counter::malloc_requested_bytes_total, bytes);
  stats.add(Counter::served_passthrough_total);
  Block* block = context == nullptr ? nullptr : new_block();
  if (block == nullptr) return;
  block->address = *address;
  block->capacity = bytes;
  block->requested = bytes;
  block->context = context;
  block->source = BlockSource::passed_through;
  block->state.store(BlockState::live, std::memory_order_relaxed);
  count_passed(stats, *block, +1);
  Block* stale = blocks_.insert(block);
  if (stale != nullptr && stale->source == BlockSource::passed_through) {
    count_passed(stale->context->stats(), *stale, -1);
    delete_block(stale);
  }
}

// Takes the record out before the real free, so that a thread that is given the same address
// meanwhile adds its own.
Block* Allocator::take_passed(CUdeviceptr address) {
  Block* block = blocks_.find(address);
  if (block == nullptr || block->source != BlockSource::passed_through) return nullptr;
  return blocks_.erase(block) ? block : nullptr;
}

void Allocator::note_passed_free(Block* passed, CUresult result, std::uint64_t start_ns) {
  Context* context = passed != nullptr ? passed->context : registry_.current();
  DeviceStats& stats = context == nullptr ? stats::device(-1) : context->stats();
  stats.add(Counter::free_calls_total);
  stats.free_time().record(util::now_ns() - start_ns);
  if (passed == nullptr) {
    stats.add(result == CUDA_SUCCESS ? Counter::free_foreign_total : Counter::free_rejected_total);
    return;
  }
  if (result != CUDA_SUCCESS) {  // the driver did not free it
    Block* stale = blocks_.insert(passed);
    if (stale != nullptr) delete_block(stale);
    return;
  }
  stats.add(Counter::free_bytes_total, passed->requested);
  count_passed(stats, *passed, -1);
  delete_block(passed);
}

std::uint64_t Allocator::known_pitch(std::uint64_t width) {
  Context* context = registry_.current();
  if (context == nullptr || width == 0) return 0;
  const auto index = static_cast<std::size_t>(context->device().ordinal());
  const std::uint64_t unit = pitch_units_[index].load(std::memory_order_relaxed);
  return unit <= 1 ? 0 : (width + unit - 1) / unit * unit;
}

// The driver does not say how it pads rows. Its answers have been multiples of kAlignment; a device
// on which the first one is not is left to the driver for good (unit 1).
void Allocator::learn_pitch(std::uint64_t width, std::uint64_t pitch) {
  Context* context = registry_.current();
  if (context == nullptr || width == 0) return;
  const bool as_expected = pitch == (width + kAlignment - 1) / kAlignment * kAlignment;
  std::atomic<std::uint64_t>& unit =
      pitch_units_[static_cast<std::size_t>(context->device().ordinal())];
  std::uint64_t unknown = 0;
  if (!as_expected) {
    unit.store(1, std::memory_order_relaxed);
  } else {
    unit.compare_exchange_strong(unknown, kAlignment, std::memory_order_relaxed);
  }
}

void Allocator::count_null_free() {
  count_in_current_device(Counter::free_calls_total);
  count_in_current_device(Counter::free_null_total);
}

void Allocator::count_in_current_device(Counter counter) {
  Context* context = registry_.current();
  (context == nullptr ? stats::device(-1) : context->stats()).add(counter);
}

bool Allocator::holds(CUdeviceptr address) const {
  const Block* block = blocks_.find(address);
  return block != nullptr && block->source != BlockSource::passed_through;
}

std::uint64_t Allocator::idle_bytes() {
  Context* context = registry_.current();
  if (context == nullptr) return 0;
  const DeviceStats& stats = context->stats();
  std::int64_t idle =
      stats.value(Gauge::cached_bytes).current + stats.value(Gauge::retired_bytes).current;
  const stats::PoolFigures figures = context->device().backend().figures();
  if (figures.valid && figures.reserved_current > figures.used_current) {
    idle += signed_bytes(figures.reserved_current - figures.used_current);
  }
  return idle > 0 ? static_cast<std::uint64_t>(idle) : 0;
}

const Block* Allocator::live_block(CUdeviceptr base) {
  const Block* block = blocks_.find(base);
  const bool live = block != nullptr && block->source != BlockSource::passed_through &&
                    block->state.load(std::memory_order_acquire) == BlockState::live;
  return live ? block : nullptr;
}

bool Allocator::is_freed_block(CUdeviceptr base) {
  const Block* block = blocks_.find(base);
  return block != nullptr && block->state.load(std::memory_order_acquire) != BlockState::live;
}

void Allocator::mark_shared_outside(CUdeviceptr address) {
  CUdeviceptr base = 0;
  if (driver_.cuMemGetAddressRange_v2(&base, nullptr, address) != CUDA_SUCCESS) base = address;
  Block* block = blocks_.find(base);
  if (block != nullptr) block->shared_outside.store(true, std::memory_order_relaxed);
}

void Allocator::context_gone(Context& context) {
  context.set_gone();
  registry_.forget_found();
  DeviceStats& stats = context.stats();
  std::vector<CUdeviceptr> orphans;
  for (Block* block :
       blocks_.extract([&](const Block& candidate) { return candidate.context == &context; })) {
    if (block->source == BlockSource::passed_through) {
      stats.add(Counter::context_lost_bytes_total, block->requested);
      count_passed(stats, *block, -1);
      delete_block(block);
      continue;
    }
    const BlockState state = block->state.load(std::memory_order_relaxed);
    if (state == BlockState::live) {
      stats.add(Counter::context_lost_bytes_total, block->requested);
      count_live(stats, *block, -1);
    } else {
      stats.gauge_add(state == BlockState::retired ? Gauge::retired_bytes : Gauge::cached_bytes,
                      -signed_bytes(block->capacity));
    }
    stats.gauge_add(Gauge::held_bytes, -signed_bytes(block->capacity));
    if (block->source == BlockSource::pool) orphans.push_back(block->address);
    delete_block(block);
  }
  context.device().add_orphans(orphans);
}

void Allocator::refresh_figures() {
  if (cuda::shut_down()) return;
  std::array<std::int64_t, stats::kMaxDevices> live_blocks{};
  std::array<std::int64_t, stats::kMaxDevices> live_bytes{};
  blocks_.for_each([&](const Block& block) {
    if (block.state.load(std::memory_order_relaxed) != BlockState::live) return;
    const auto index = static_cast<std::size_t>(block.context->device().ordinal());
    ++live_blocks[index];
    live_bytes[index] += signed_bytes(block.requested);
  });
  for (Device* device : registry_.devices()) {
    const auto index = static_cast<std::size_t>(device->ordinal());
    device->stats().gauge_set(Gauge::leaked_blocks, live_blocks[index]);
    device->stats().gauge_set(Gauge::leaked_bytes, live_bytes[index]);
    device->stats().set_pool_figures(device->backend().figures());
  }
}

}  // namespace cupool::core
