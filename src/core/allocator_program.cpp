// What is not served here but has to be known: calls that pass through, questions of the program
// about its memory, contexts that end, and the figures for the report.
#include <algorithm>

#include "core/accounting.h"
#include "core/allocator.h"
#include "util/clock.h"
#include "util/mutation.h"

namespace cupool::core {

using stats::Counter;
using stats::DeviceStats;
using stats::Gauge;

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
  stats.requested_sizes().record(bytes);
  stats::this_thread().add_mallocs(1, bytes);
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
  stats::this_thread().add_frees(1);
  count_passed(stats, *passed, -1);
  context->device().count_free_by_driver();
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
  fold_statistics();
  const DeviceStats& stats = context->stats();
  std::int64_t idle =
      stats.value(Gauge::cached_bytes).current + stats.value(Gauge::retired_bytes).current;
  idle -= signed_bytes(exports_.kept_bytes(context->device()));
  const stats::PoolFigures figures = context->device().pool_figures();
  if (figures.valid && figures.reserved_current > figures.used_current) {
    idle += signed_bytes(figures.reserved_current - figures.used_current);
  }
  idle += signed_bytes(context->device().preallocating_bytes());
  if (stats.value(Gauge::application_bytes).current > 0) {
    idle -= signed_bytes(context->device().pinned_bytes());
  }
  return idle > 0 ? static_cast<std::uint64_t>(idle) : 0;
}

CUdeviceptr Allocator::base_of(CUdeviceptr address) const {
  CUdeviceptr base = 0;
  if (holds(address)) return address;
  const CUresult result = driver_.cuMemGetAddressRange_v2(&base, nullptr, address);
  if (result == CUDA_SUCCESS) return base;
  base = address;
  // The usual answer for memory that is not the device's; any other is the driver's trouble.
  if (result == CUDA_ERROR_NOT_FOUND) return base;
  blocks_.for_each([&](const Block& block) {
    const bool inside = address >= block.address && address - block.address < block.capacity;
    if (inside && block.source != BlockSource::passed_through) base = block.address;
  });
  return base;
}

const Block* Allocator::live_block(CUdeviceptr base) {
  const Block* block = blocks_.find(base);
  const bool live = block != nullptr && block->source != BlockSource::passed_through &&
                    block->state.load(std::memory_order_acquire) == BlockState::live;
  return live ? block : nullptr;
}

std::optional<trace::Memory> Allocator::memory_at(CUdeviceptr address) const {
  const Block* block = blocks_.find(address);
  if (block == nullptr || block->state.load(std::memory_order_acquire) != BlockState::live) {
    return std::nullopt;
  }
  return trace::Memory{address, block->requested, block->context->device().ordinal()};
}

bool Allocator::is_freed_block(CUdeviceptr base) {
  const Block* block = blocks_.find(base);
  return block != nullptr && block->state.load(std::memory_order_acquire) != BlockState::live;
}

void Allocator::managed_allocated(CUdeviceptr address, std::uint64_t bytes) {
  host_reachable_.add(HostReachable::Kind::managed, address, bytes);
  Context* context = registry_.current();
  if (context != nullptr && context->usable()) leave_room_for_managed(*context);
}

// Managed memory takes device memory when a kernel touches it; the driver could evict other managed
// memory for it, but nothing that lies idle with us, and the kernel would fail (measured). So what
// is idle stays below what live blocks and all managed memory leave of the device.
void Allocator::leave_room_for_managed(Context& context) {
  constexpr std::uint64_t kSpareShare = 16;  // for page tables, and for what takes memory unseen
  const std::uint64_t managed = host_reachable_.bytes(HostReachable::Kind::managed);
  if (managed == 0) return;
  Device& device = context.device();
  device.end_preallocation(context);
  context.drain_threads(Context::Drain::all);
  const DeviceStats& stats = device.stats();
  const auto now = [&](Gauge gauge) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(stats.value(gauge).current, 0));
  };
  const std::uint64_t spoken_for = now(Gauge::device_bytes) + now(Gauge::rounding_bytes) + managed +
                                   device.total_bytes() / kSpareShare;
  const std::uint64_t allowed =
      device.total_bytes() > spoken_for ? device.total_bytes() - spoken_for : 0;
  const stats::PoolFigures pool = device.pool_figures();
  const std::uint64_t slack =
      pool.reserved_current > pool.used_current ? pool.reserved_current - pool.used_current : 0;
  if (now(Gauge::cached_bytes) + slack <= allowed) return;
  BlockList idle = context.cache().evict_to(allowed);
  release(context, idle);
  device.trim(context);
  device.stats().add(Counter::trims_total);
  stats::note_event(stats::EventKind::trim, device.stats(), 0);
}

void Allocator::mark_shared_outside(CUdeviceptr address) {
  Block* block = blocks_.find(base_of(address));
  if (block != nullptr) block->set_shared_outside();
}

void Allocator::context_gone(Context& context) {
  if (CUPOOL_MUTATED("gone-context-serves")) return;
  context.set_gone();
  registry_.forget_found();
  DeviceStats& stats = context.stats();
  std::vector<CUdeviceptr> orphans;
  const std::uint64_t lost_before = stats.value(Counter::context_lost_bytes_total);
  for (Block* block : blocks_.extract([&](const Block& candidate) {
         return candidate.context == &context &&
                candidate.state.load(std::memory_order_relaxed) != BlockState::leaving;
       })) {
    if (trace::watching() && block->state.load(std::memory_order_relaxed) == BlockState::live) {
      trace::note_lost({block->address, block->requested, context.device().ordinal()});
    }
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
    // What another process has open goes when its leases do.
    const bool unused =
        !block->shared_outside.load(std::memory_order_relaxed) || exports_.end(*block, true);
    if (block->source == BlockSource::pool && unused) orphans.push_back(block->address);
    delete_block(block);
  }
  const std::uint64_t lost = stats.value(Counter::context_lost_bytes_total) - lost_before;
  if (lost != 0) stats::note_event(stats::EventKind::context_lost, stats, lost);
  context.device().add_orphans(orphans);
  imports_.context_gone(context);
  // Managed and mapped memory goes with the last context.
  if (registry_.all_gone()) host_reachable_.clear();
}

void Allocator::fold_statistics() {
  for (Device* device : registry_.devices()) {
    for (Context* context : registry_.contexts_of(device->ordinal())) context->fold_threads();
  }
}

void Allocator::refresh_figures() {
  fold_statistics();
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
    device->stats().set_pool_figures(device->pool_figures());
  }
}

}  // namespace cupool::core
