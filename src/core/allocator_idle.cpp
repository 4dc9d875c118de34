// What becomes of blocks that are quiet: kept for the next allocation, or given back to the
// backend. Read with docs/design.md, section Engine.
#include <algorithm>
#include <chrono>
#include <thread>

#include "core/accounting.h"
#include "core/allocator.h"
#include "cuda/errors.h"
#include "stats/timeline.h"
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

// What is in a thread's hands is there for some driver calls; the thread may not be scheduled.
constexpr std::uint64_t kLongestWaitForOthersNs = 1'000'000'000;

// Blocks that have become quiet are in a thread's hands until they lie in a list, where another
// finds them: not for long, unless the thread is off its processor. Chosen, not measured.
constexpr std::chrono::microseconds kMomentsForOthers[] = {std::chrono::microseconds(500),
                                                           std::chrono::microseconds(4000)};

// A pool keeps this much and more where it could go back to the device.
constexpr std::uint64_t kGrowthStep = 32ull << 20;

}  // namespace

void Allocator::keep_quiet(Context& context) {
  if (!context.ordering().holds_blocks() || !serving_.load(std::memory_order_relaxed)) return;
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
    block->state.store(BlockState::quiet, std::memory_order_relaxed);
    (is_wanted(context.device(), *block) ? own : unwanted).push(block);
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
  GivingBack giving_back(*this);
  giving_back.gave_back = true;
  Device& device = context.device();
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
    // The driver may hand the address out again at once: to us if the pool is ours, and until then
    // the block has to be there, so that a stray free of it is refused; else perhaps to the
    // program.
    const bool comes_to_us = source == BlockSource::pool && !device.limits().use_default_pool;
    block->state.store(BlockState::leaving, std::memory_order_release);
    if (!comes_to_us) blocks_.erase(block);
    // A refusal may pass; what is refused twice is tried once more with other lost memory.
    Backend& backend = device.backend_of(source);
    const bool released = backend.release(context, address) || backend.release(context, address);
    if (comes_to_us) blocks_.erase(block);
    delete_block(block);
    if (!released && source == BlockSource::pool) refused.push_back(address);
  }
  if (!refused.empty()) device.add_orphans(refused);
}

bool Allocator::give_back_idle(Context& context) {
  if (!serving_.load(std::memory_order_relaxed)) return false;
  Device& device = context.device();
  device.end_preallocation(context);
  const auto returned = [&] { return device.stats().value(Counter::returned_bytes_total); };
  const std::uint64_t returned_before = returned();
  bool any = release_ended_leases();
  for (Context* other : registry_.contexts_of(device.ordinal())) {
    if (!other->usable()) continue;
    other->drain_threads(Context::Drain::all);
    Ordering& ordering = other->ordering();
    CUresult result = ordering.wait_for_all(nullptr, kLongestWaitInMallocNs);
    // A refusal may pass; what is quiet already goes back in any case.
    if (cuda::is_refusal(result)) result = ordering.wait_for_all(nullptr, kLongestWaitInMallocNs);
    if (result != CUDA_SUCCESS) note_failure(*other, result);
    if (!other->usable() || cuda::shut_down()) continue;
    keep_quiet(*other);
    any = give_back_cached(*other) || any;
  }
  // Of the cache, and what was never kept in it: for that, memory is given back as soon as it is
  // quiet.
  return any || returned() != returned_before;
}

// What lies in the context's cache and in its device's pools. True: the pools have shrunk.
bool Allocator::give_back_cached(Context& context) {
  Device& device = context.device();
  std::optional<GivingBack> giving_back;
  if (context.cache().bytes() != 0) giving_back.emplace(*this);
  BlockList idle = context.cache().evict_to(0);
  release(context, idle);
  device.release_orphans(context);
  const stats::PoolFigures before = device.pool_figures();
  const bool slack = before.reserved_current >= before.used_current + kGrowthStep;
  if (slack && !giving_back) giving_back.emplace(*this);
  device.trim(context);
  device.stats().add(Counter::trims_total);
  stats::note_event(EventKind::trim, device.stats(), 0);
  const bool shrunk = device.pool_figures().reserved_current < before.reserved_current;
  if (giving_back) giving_back->gave_back = shrunk;
  return shrunk;
}

// Whether memory has gone back to the device that a call did not find which ran out of it and began
// at `*tried_ns` or later: here, or by other threads that had idle memory in their hands. It is
// then to be tried again, which begins now.
bool Allocator::more_given_back(Context& context, std::uint64_t* tried_ns) {
  const auto look = [&] {
    const bool any = give_back_idle(context);
    const std::uint64_t start = util::now_ns();
    while (giving_back_.load(std::memory_order_acquire) != 0 &&
           util::now_ns() - start < kLongestWaitForOthersNs) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return any || gave_back_ns_.load(std::memory_order_acquire) >= *tried_ns;
  };
  bool more = look();
  for (const auto moment : kMomentsForOthers) {
    if (more || context.thread_caches().in_use() < 2) break;
    std::this_thread::sleep_for(moment);
    more = look();
  }
  *tried_ns = util::now_ns();
  return more;
}

void Allocator::settle_idle(Context& context) {
  context.drain_idle_threads();
  BlockList quiet;
  const CUresult result = context.ordering().poll(true, &quiet);
  if (result != CUDA_SUCCESS) note_failure(context, result);
  if (!quiet.empty()) keep(context, quiet);
}

std::uint64_t Allocator::release_unneeded(Context& context, std::uint64_t most_bytes) {
  GivingBack part(*this);
  BlockList unneeded = context.cache().evict_unneeded(most_bytes);
  BlockList plain;
  BlockList pooled;
  while (Block* block = unneeded.pop()) {
    (block->source == BlockSource::pool ? pooled : plain).push(block);
  }
  if (!plain.empty()) context.cache().put(plain);
  const std::uint64_t bytes = pooled.bytes;
  part.gave_back = bytes != 0;
  release(context, pooled);
  return bytes;
}

void Allocator::preallocate(Context& context) {
  Device& device = context.device();
  if (!device.begin_preallocation()) return;
  void (*const wake)() = wake_preallocator_.load();
  if (wake == nullptr) return device.preallocate(context);
  device.preallocate_later();
  wake();
}

bool Allocator::preallocates() {
  const std::vector<Device*> devices = registry_.devices();
  return std::any_of(devices.begin(), devices.end(),
                     [](const Device* device) { return device->preallocates(); });
}

bool Allocator::trim_unneeded(Context& context, std::uint64_t most_bytes, bool* more) {
  GivingBack part(*this);
  Device& device = context.device();
  part.gave_back = device.trim_unneeded(context, most_bytes, more);
  if (!part.gave_back) return false;
  device.stats().add(Counter::trims_total);
  stats::note_event(EventKind::trim, device.stats(), 0);
  return true;
}

bool Allocator::start_some_pools() {
  bool all = true;
  for (Device* device : registry_.devices()) {
    for (Context* context : registry_.contexts_of(device->ordinal())) {
      if (device->awaits_pools() && context->usable()) device->start_pools(*context);
    }
    all = all && !device->awaits_pools();
  }
  return all;
}

bool Allocator::preallocate_some() {
  GivingBack part(*this);
  part.gave_back = true;  // if it was told to end meanwhile
  for (Device* device : registry_.devices()) {
    for (Context* context : registry_.contexts_of(device->ordinal())) {
      if (!context->usable()) continue;
      if (device->preallocate_some(*context) == Preallocation::goes_on) return true;
    }
  }
  return false;
}

}  // namespace cupool::core
