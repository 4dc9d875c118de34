// SPDX-License-Identifier: Apache-2.0
// Idle blocks: cached for the next allocation, or released to the backend. Read with
// docs/design.md, section Engine.
#include "engine/serve/idle_memory.h"

#include <algorithm>
#include <new>
#include <optional>

#include "cuda/errors.h"
#include "engine/block/accounting.h"
#include "engine/context/rdma_libraries.h"
#include "engine/context/thread_order.h"
#include "engine/reclaim/lane.h"
#include "engine/reclaim/message_calls.h"
#include "engine/reclaim/pending_work.h"
#include "engine/serve/failure.h"
#include "engine/serve/messages.h"
#include "engine/serve/retire.h"
#include "stats/timeline.h"
#include "util/log.h"
#include "util/mutation.h"

namespace cupool::engine {

using stats::Counter;
using stats::DeviceStats;
using stats::EventKind;
using stats::Gauge;

namespace {

// Idle pool bytes that trigger a trim. A trim waits for the pools' streams, so it is not done for
// less.
constexpr std::uint64_t kGatheredBytes = 64ull << 20;

bool any_rdma_library() {
  return noted_rdma_library() != nullptr || loaded_rdma_library() != nullptr;
}

}  // namespace

void IdleMemory::look_for_libraries(Look look) {
  const bool rdma_matters = (settings_.backend == config::Backend::automatic &&
                             !rdma_library_found_.load(std::memory_order_relaxed)) ||
                            settings_.free_mode == config::FreeMode::automatic;
  const bool unseen_matters =
      !Lane::is_over() || PendingWork::is_trusted() || !policy_.knows_of_others();
  if ((!rdma_matters && !unseen_matters) || (!libraries_were_added() && look == Look::if_added)) {
    return;
  }
  if (unseen_matters && loaded_unseen_work_library() != nullptr) {
    Lane::leave(Lane::End::unknown_work, "a library of OptiX or of the video engines");
    // No order behind a free reaches work that is not seen.
    if (!policy_.knows_of_others()) policy_.let_see(FreePolicy::Others::at_any_time);
  }
  if (!rdma_matters) return;
  if (rdma_library_found_.load(std::memory_order_relaxed)) return settle_free_mode();
  const char* library = loaded_rdma_library();
  if (library == nullptr || rdma_library_found_.exchange(true, std::memory_order_relaxed)) return;
  Lane::leave(Lane::End::off);
  settle_free_mode();
  CUPOOL_LOG(
      info, "%s is loaded: from now on blocks are plain memory, and frees %s", library,
      policy_.mode() == config::FreeMode::automatic ? "leave waits to calls of MPI" : "wait");
  if (settings_.backend != config::Backend::automatic) return;
  registry_.devices().use_plain_memory();
  for (Device* device : registry_.devices().all()) {
    for (Context* context : registry_.contexts_of(device->ordinal())) {
      const ContextVisit visit(*context, kLongestWaitForOthersNs);
      if (!visit || !context->usable()) continue;
      context->threads().drain(Drain::all);
      BlockList idle = context->cache().evict_to(0);
      release(*context, idle);
    }
  }
}

// A wait for the events of a context is needed: one for the whole context would cover what was
// submitted after the free, too.
void IdleMemory::settle_free_mode() {
  using Others = FreePolicy::Others;
  if (settings_.free_mode != config::FreeMode::automatic ||
      !rdma_library_found_.load(std::memory_order_relaxed)) {
    return;
  }
  const bool is_late = !policy_.knows_of_others() && !registry_.all().empty();
  const char* const user = rdma_user_beside_mpi();
  if (cuda::driver()->cuCtxRecordEvent != nullptr && !MessageCalls::any_unseen_route() &&
      user == nullptr) {
    policy_.let_see(MessageCalls::seen() ? Others::by_messages : Others::by_messages_unseen);
    if (is_late) Messages::cover(registry_);
    return;
  }
  // What frees have left to messages may be seen at once.
  policy_.let_see(Others::at_any_time);
  if (is_late) Messages::cover(registry_);
  if (!MessageCalls::are_settled(MessageCalls::frees())) {
    Messages::wait(registry_, kLongestWaitForOthersNs);
  }
  if (user != nullptr) CUPOOL_LOG(info, "frees wait: %s uses RDMA beside MPI", user);
}

void IdleMemory::cache_reclaimed(Context& context) {
  if (!context.ordering().epochs().holds_blocks()) return;
  look_for_libraries();
  const ContextVisit visit(context);
  if (!visit) return;
  BlockList reclaimed = context.ordering().pop_reclaimed();
  if (!reclaimed.empty()) cache_or_release(context, reclaimed);
}

// The driver's pool would hand the memory out again while the holder of a descriptor can still
// write to it (measured). The driver's own free takes plain memory away from the address, so the
// next owner gets other memory.
bool IdleMemory::stays_exported(Block& block) {
  if (!block.exported || block.source != BlockSource::pool) return false;
  CUPOOL_WARN_ONCE(
      "the program freed memory with an exported descriptor (cuMemGetHandleForAddressRange). The "
      "block is set aside, since the descriptor's holder may still use it. CUPOOL_BYPASS_LIBS has "
      "the driver serve the library that exports it");
  set_aside(block);
  return true;
}

void IdleMemory::cache_or_release(Context& context, BlockList& reclaimed) {
  DeviceStats& stats = context.stats();
  BlockList unwanted;
  BlockList own;
  while (Block* block = reclaimed.pop()) {
    if (is_leased(*block)) continue;  // stays retired until release_ended_leases()
    if (stays_exported(*block)) continue;
    block->state.store(BlockState::cached, std::memory_order_relaxed);
    (is_wanted(context.device(), *block) ? own : unwanted).push(block);
  }
  stats.gauge_add(Gauge::retired_bytes, -signed_bytes(own.bytes + unwanted.bytes));
  stats.gauge_add(Gauge::cached_bytes, signed_bytes(own.bytes + unwanted.bytes));
  context.cache().cache(own);
  if (!unwanted.empty()) {
    release(context, unwanted);
    if (Serving::stepped_aside()) trim_gathered(context);
  }
  if (policy_.host_reachable().any(HostReachable::Kind::managed)) leave_room_for_managed(context);
  const std::uint64_t allowed = context.device().limits().max_cached;
  if (context.cache().bytes() > allowed) {
    BlockList excess = context.cache().evict_to(allowed);
    release_complete(context, excess);
  }
}

// A fence proves what the order of a stream only promises. Takes out the blocks whose fence is not
// complete.
BlockList IdleMemory::pop_pending(Context& context, BlockList& cached) {
  BlockList pending;
  if (LaneMark::number() == 0 || CUPOOL_MUTATED("releases-in-lane")) return pending;
  const EpochNumber complete = context.ordering().epochs().complete_up_to();
  BlockList rest;
  while (Block* block = cached.pop()) {
    (EpochNumber{std::uint64_t{block->lane_epoch}} > complete ? pending : rest).push(block);
  }
  cached = rest;
  return pending;
}

void IdleMemory::retire_pending(Context& context, BlockList& cached) {
  BlockList pending = pop_pending(context, cached);
  if (pending.empty()) return;
  context.stats().gauge_add(Gauge::cached_bytes, -signed_bytes(pending.bytes));
  context.stats().gauge_add(Gauge::retired_bytes, signed_bytes(pending.bytes));
  while (Block* block = pending.pop()) {
    block->lane_epoch = 0;
    block->state.store(BlockState::freed, std::memory_order_relaxed);
    context.ordering().epochs().retire(block);
  }
}

void IdleMemory::retire_cached(Context& context) {
  if (LaneMark::number() == 0) return;
  BlockList cached = context.cache().evict_to(0);
  retire_pending(context, cached);
  context.cache().cache(cached);
}

// The next fence makes them complete, so one is asked for.
void IdleMemory::release_complete(Context& context, BlockList& idle) {
  BlockList pending = pop_pending(context, idle);
  if (!pending.empty()) {
    context.cache().cache(pending);
    Ordering& ordering = context.ordering();
    ordering.epochs().join(0, 1);
    BlockList reclaimed;
    const CUresult result = ordering.poll(Ordering::Poll::all, &reclaimed, kNoEpoch);
    if (result != CUDA_SUCCESS) note_failure(context, result);
    if (!reclaimed.empty()) cache_or_release(context, reclaimed);
  }
  release(context, idle);
}

void IdleMemory::release(Context& context, BlockList& idle) {
  if (idle.empty()) return;
  GivingBack giving_back(give_backs_);
  giving_back.gave_back = true;
  retire_pending(context, idle);
  if (idle.empty()) return;
  Device& device = context.device();
  DeviceStats& stats = context.stats();
  stats.gauge_add(Gauge::cached_bytes, -signed_bytes(idle.bytes));
  stats.gauge_add(Gauge::held_bytes, -signed_bytes(idle.bytes));
  stats::note_event(EventKind::give_back, stats, idle.bytes);
  std::optional<bool> is_watched;  // looked for once there is plain memory
  while (Block* block = idle.pop()) {
    // The end of the context did not wait for this thread any longer. The address may be another
    // owner's, and the record in a list of that end.
    if (context.gone() && context.gate().any_left_inside()) continue;
    stats.add(Counter::returned_blocks_total);
    stats.add(Counter::returned_bytes_total, block->capacity);
    const CUdeviceptr address = block->address;
    const BlockSource source = block->source;
    // The driver may hand the address out again at once. With cupool's own pool, cupool gets it;
    // until then the block stays in the map, so that a stray free is refused. Otherwise the program
    // may get it.
    const bool comes_to_us = source == BlockSource::pool && !device.limits().use_default_pool;
    block->state.store(BlockState::leaving, std::memory_order_release);
    count_plain(stats, *block, -1);
    if (!comes_to_us && !blocks_.erase(block) &&
        (context.ends() || context.gate().any_left_inside())) {
      continue;  // another owner's, as above
    }
    // A refusal may pass. Memory refused twice is tried once more later, with the orphans.
    Backend& backend = device.backend_of(source);
    bool released = false;
    if (source == BlockSource::malloc) {
      if (!is_watched) is_watched = any_rdma_library();
      released =
          !*is_watched && !Serving::any_capture() && backend.release_in_stream(context, address);
    }
    released = released || backend.release(context, address) || backend.release(context, address);
    if (comes_to_us) blocks_.erase(block);
    if (!released && source == BlockSource::pool) {
      device.orphans().add(*block);
    } else {
      delete_block(block);
    }
  }
}

void IdleMemory::trim_gathered(Context& context) {
  Device& device = context.device();
  const stats::PoolFigures figures = device.pool_figures();
  if (figures.reserved_current < figures.used_current + kGatheredBytes) return;
  device.trim(context);
  device.stats().add(Counter::trims_total);
  stats::note_event(EventKind::trim, device.stats(), 0);
}

void IdleMemory::leave_room_for_managed(Context& context) {
  constexpr std::uint64_t kSpareShare = 16;  // for page tables, and for memory taken unseen
  const std::uint64_t managed = policy_.host_reachable().bytes(HostReachable::Kind::managed);
  Device& device = context.device();
  if (device.pools() != nullptr) device.pools()->preallocation().end(context);
  const DeviceStats& stats = device.stats();
  const auto now = [&](Gauge gauge) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(stats.value(gauge).current, 0));
  };
  // Usually everything fits, and the exact idle bytes are not needed.
  const std::uint64_t most = now(Gauge::passthrough_bytes) + managed +
                             device.total_bytes() / kSpareShare +
                             device.budget().most_held(device.pools());
  if (most <= device.total_bytes()) return;
  device.budget().forget_most_held();
  context.threads().drain(Drain::all);
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

// What is reclaimed and in no cache is gone once the context ends: the records may be other blocks'
// by the time of the visit.
bool IdleMemory::reclaim(Context& context, ThreadCache& cache, BatchNumber waited_for) {
  Device& device = context.device();
  BlockList surplus;
  std::uint64_t life = 0;
  {
    const ThreadCache::Guard guard(cache);
    life = context.incarnation();
    // Read after the life: a context that ends is marked first, and the cache emptied last.
    if (!context.usable()) return false;
    const EpochNumber complete_up_to = context.ordering().epochs().complete_up_to();
    const bool batch_is_complete = cache.batch.is_filling(waited_for);
    if (!batch_is_complete && cache.in_flight.oldest() > complete_up_to) return false;
    const auto unfit = [&](const Block& block) { return !is_wanted(device, block); };
    cache.reclaim(complete_up_to, batch_is_complete, &surplus, unfit);
  }
  if (surplus.empty() && !policy_.host_reachable().any(HostReachable::Kind::managed)) return true;
  const ContextVisit visit(context);
  if (!visit || context.incarnation() != life) return true;
  if (!surplus.empty()) {
    cache_or_release(context, surplus);
  } else {
    leave_room_for_managed(context);
  }
  return true;
}

// The context's own fence tells whose error it is. Where none can be recorded at all, nobody does.
void IdleMemory::driver_refused(Context* context, std::uint64_t life, CUresult error) {
  if (context == nullptr || context->incarnation() != life) return;
  if (cuda::is_sticky(error) && several_contexts()) {
    const ContextVisit visit(*context, kShortNs);
    if (!visit || context->incarnation() != life) return;  // it ends
    Ordering& ordering = context->ordering();
    const EpochNumber epoch = ordering.epochs().join(0, 1);
    BlockList reclaimed;
    const CUresult result = ordering.poll(Ordering::Poll::all, &reclaimed);
    if (result != CUDA_SUCCESS) note_failure(*context, result);
    if (!reclaimed.empty()) cache_or_release(*context, reclaimed);
    const bool later = Serving::any_capture() || Serving::stepped_aside();
    if (later || ordering.fence(epoch)) return;
  }
  note_failure(*context, life, error);
}

// Whether another process uses a block that is complete here. If so, the exports keep it: it counts
// as retired, and this thread must not touch it any more.
bool IdleMemory::is_leased(Block& block) {
  return block.shared_outside.load(std::memory_order_relaxed) &&
         !exports_.end(block, IpcExports::Kept::block);
}

// Without host memory for their list, they wait for the next call.
bool IdleMemory::release_ended_leases() {
  if (!exports_.any_ended()) return false;
  try {
    release_listed_leases();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void IdleMemory::release_listed_leases() {
  for (Context* context : exports_.contexts_of_ended()) {
    if (context == nullptr) {
      for (const auto& ended : exports_.take_ended(nullptr)) {
        ended.device->orphans().add(ended.address);
      }
      continue;
    }
    const ContextVisit visit(*context, kShortNs);
    if (!visit) continue;
    BlockList idle;
    for (const auto& ended : exports_.take_ended(context)) {
      if (stays_exported(*ended.block)) continue;
      ended.block->state.store(BlockState::cached, std::memory_order_relaxed);
      idle.push(ended.block);
    }
    DeviceStats& stats = context->stats();
    stats.gauge_add(Gauge::retired_bytes, -signed_bytes(idle.bytes));
    stats.gauge_add(Gauge::cached_bytes, signed_bytes(idle.bytes));
    release(*context, idle);
  }
}

}  // namespace cupool::engine
