// SPDX-License-Identifier: Apache-2.0
// Frees and misses. A free waits as one of device memory does (engine/serve/frees), and its block is
// retired behind a fence; or it is cached at once, where the GPU is known to have nothing to do.
#include "engine/serve/host_memory.h"

#include <algorithm>

#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "engine/block/accounting.h"
#include "engine/context/rdma_libraries.h"
#include "engine/context/thread_order.h"
#include "engine/host/host_limit.h"
#include "engine/reclaim/lane.h"
#include "engine/reclaim/pinned_memory.h"
#include "engine/serve/failure.h"
#include "engine/serve/retire.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mutation.h"
#include "util/uncancelled.h"

namespace cupool::engine {

using stats::Counter;
using stats::DeviceStats;
using stats::Gauge;

namespace {

// May be cached whatever the program had at its peak.
constexpr std::uint64_t kLeastCached = 32ull << 20;
// Retired bytes beyond which a free waits, as the driver's own would.
constexpr std::uint64_t kMostRetired = 64ull << 20;
// Retired bytes that get a fence at the free, since memory of this size is worth a microsecond.
constexpr std::uint64_t kFencedBytes = 1ull << 20;
// Given back at once by decay: unpinning takes the driver some 0.6 ms a MiB.
constexpr std::uint64_t kHostSlice = 16ull << 20;
// Looks in a row that found the GPU busy although no work was seen, before that is believed.
constexpr unsigned kSuspicions = 3;

CUdeviceptr address_in(const void* host) {
  return reinterpret_cast<CUdeviceptr>(host);
}

// Several contexts may use the memory, and the fence of one covers no work of another.
bool has_one_context() {
  return !several_contexts() || CUPOOL_MUTATED("forgets-other-contexts");
}

// A wait of a free.
template <typename Wait>
WaitResult timed_wait(DeviceStats& stats, const Wait& wait) {
  const std::uint64_t start = util::now_ns();
  const WaitResult result = wait();
  if (result.waited) {
    stats.add(Counter::host_free_waits_total);
    stats.add(Counter::host_free_wait_ns_total, util::now_ns() - start);
  }
  return result;
}

}  // namespace

HostMemory::HostMemory(const cuda::Driver& driver, const config::Settings& settings,
                       ContextRegistry& registry, FreePolicy& policy, IdleMemory& idle)
    : driver_(driver),
      registry_(registry),
      policy_(policy),
      idle_(idle),
      on_(driver.cuMemFreeHost != nullptr && driver.cuCtxRecordEvent != nullptr),
      most_cached_(on_ ? most_cached_host_bytes(settings.host_max_cached, memory_of_process())
                       : 0) {}

// RDMA libraries keep page-locked memory registered with their hardware.
bool HostMemory::may_serve(const Context& context) const {
  return most_cached_ != 0 && context.usable() && Serving::open() && has_one_context() &&
         noted_rdma_library() == nullptr;
}

bool HostMemory::may_allocate(Context** context, std::size_t bytes, unsigned kind) {
  if (most_cached_ == 0 || bytes == 0 || bytes > kLargestHostBlock || kind == kNoHostKind ||
      refusal_in_host_function(driver_) != CUDA_SUCCESS) {
    return false;
  }
  if (*context == nullptr) return false;
  Context* const current = registry_.ask_for_current(*context);
  if (current == nullptr) return false;
  Context* none = nullptr;
  home_.compare_exchange_strong(none, current, std::memory_order_acq_rel);
  *context = current;
  if (serves(*current)) return true;
  // Mostly for good: nothing of it will be needed again.
  if (cache_.any() && !Serving::any_capture()) give_back();
  return false;
}

Block* HostMemory::reclaim_and_pop(Context& context, std::size_t bytes, unsigned kind) {
  const std::uint64_t wanted = host_capacity_for(bytes);
  const unsigned node = current_host_node();
  const auto complete = [&] { return context.ordering().epochs().complete_up_to(); };
  if (Block* const block = cache_.pop(wanted, bytes, kind, node, complete())) return block;
  if (!cache_.any()) return nullptr;
  if (cache_.retired_bytes() != 0) settle(context);
  if (Block* const block = cache_.pop(wanted, bytes, kind, node, complete())) return block;
  return cache_.pop_others(wanted, bytes, kind, node, complete());
}

// The driver's call took longer than the look for libraries.
bool HostMemory::adopt(Context& context, void* address, std::size_t bytes, unsigned kind) {
  if (loaded_rdma_library() != nullptr) return false;
  Block* const block = new_block();
  if (block == nullptr) return false;
  block->address = address_in(address);
  block->capacity = host_capacity_for(bytes);
  block->requested = bytes;
  block->context = &context;
  block->source = BlockSource::malloc;
  block->kind = host_tag(kind, current_host_node());
  block->state.store(BlockState::live, std::memory_order_relaxed);
  held_.fetch_add(block->capacity, std::memory_order_relaxed);
  context.stats().gauge_add(Gauge::host_held_bytes, signed_bytes(block->capacity));
  PinnedMemory::add(address, block->capacity);
  add_block(blocks_, block);
  note_peak();
  return true;
}

// What lies idle never exceeds what the program itself had at its peak, but for a little.
void HostMemory::note_peak() {
  const std::uint64_t held = held_.load(std::memory_order_relaxed);
  const std::uint64_t idle = cache_.bytes();
  const std::uint64_t had = held > idle ? held - idle : 0;
  std::uint64_t peak = peak_.load(std::memory_order_relaxed);
  while (peak < had && !peak_.compare_exchange_weak(peak, had, std::memory_order_relaxed)) {
  }
  cache_.set_limit(std::min(most_cached_, std::max({peak, had, kLeastCached})));
}

// The driver hands out an address only after it was freed, by a route that cupool does not see.
void HostMemory::forget_stale(const void* address) {
  if (held_.load(std::memory_order_relaxed) == 0) return;
  Block* const stale = blocks_.find(address_in(address));
  if (stale == nullptr) return;
  BlockList kept;
  if (stale->state.load() != BlockState::live) {
    BlockList all = cache_.take(HostCache::Which::all);
    while (Block* const block = all.pop()) {
      if (block != stale) kept.push(block);
    }
  }
  forget(*stale);
  delete_block(stale);
  if (kept.empty()) return;
  Context& context = *kept.head->context;
  const ContextVisit visit(context);
  if (visit) release(context, kept);
}

std::optional<CUresult> HostMemory::try_free(void* host) {
  if (held_.load(std::memory_order_relaxed) == 0) return std::nullopt;
  const CUdeviceptr address = address_in(host);
  Block* const block = blocks_.find(address);
  if (block == nullptr) return std::nullopt;
  const std::uint64_t word = block->state.word();
  Context* const context = block->context;
  if (block->address != address || context == nullptr) return std::nullopt;
  const std::uint64_t life = context->incarnation();
  if (BlockStateCell::state_of(word) != BlockState::live) {
    if (const CUresult refusal = refusal_in_host_function(driver_)) return refusal;
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!serves(*context) || block->shared_outside.load(std::memory_order_relaxed)) {
    return std::nullopt;
  }
  if (PendingWork::none() && runs_no_host_functions() &&
      !policy_.host_reachable().any(HostReachable::Kind::zero_copy) && !HostCache::look_is_due()) {
    if (!block->state.claim(word)) return CUDA_ERROR_INVALID_VALUE;
    return put(*block, [&] { return cache_.cache(*block, life, context->incarnation_cell()); });
  }
  const util::Uncancelled throughout;
  if (const CUresult refusal = refusal_in_host_function(driver_)) return refusal;
  if (!block->state.claim(word)) return CUDA_ERROR_INVALID_VALUE;
  return free_claimed(*block, life);
}

// Puts a block into the cache, as `put` does. `std::nullopt`: there is no room for it. It is live
// again, and the driver frees it.
template <typename Put>
std::optional<CUresult> HostMemory::put(Block& block, const Put& put) {
  using Taken = HostCache::Taken;
  Taken taken = put();
  if (__builtin_expect(taken == Taken::full, 0) && make_room(*block.context, block.capacity)) {
    taken = put();
  }
  if (taken == Taken::full) {
    block.state.store(BlockState::live);
    return std::nullopt;
  }
  note_first_cached();
  return CUDA_SUCCESS;
}

// The driver's free of others takes as long as that of the block itself would; the block is more
// likely to be wanted again.
bool HostMemory::make_room(Context& context, std::uint64_t bytes) {
  const util::Uncancelled throughout;
  if (bytes > cache_.limit() || Serving::any_capture()) return false;
  const ContextVisit visit(context);
  if (!visit || !context.usable()) return false;
  BlockList others = cache_.take(HostCache::Which::unneeded, bytes);
  if (others.bytes < bytes) {
    BlockList more = cache_.take(HostCache::Which::idle, bytes - others.bytes);
    others.splice(more);
  }
  return release(context, others);
}

// As of device memory: what touches host memory is waited for, and what this thread does next comes
// behind its work so far (contract 2). The epoch covers all work of the context until now.
std::optional<CUresult> HostMemory::free_claimed(Block& block, std::uint64_t life) {
  Context& context = *block.context;
  DeviceStats& stats = context.stats();
  const auto& life_now = context.incarnation_cell();
  if (PendingWork::none() && verify_nothing(context)) {
    end_zero_copy(block);
    return put(block, [&] { return cache_.cache(block, life, life_now); });
  }
  PendingWork::Claim claim(!several_contexts());
  const HostWork::Mark before = context.host_work().begin_wait();
  const EpochNumber epoch = context.ordering().epochs().join(0, 1);
  using For = FreePolicy::Wait::For;
  const For what = policy_.wait_of(context).what;
  bool for_context = what == For::context;
  WaitResult result;
  if (what == For::host_work && !CUPOOL_MUTATED("host-free-leaves-copies")) {
    result = timed_wait(stats, [&] { return context.host_work().wait(); });
    for_context = cuda::is_refusal(result.error);
  }
  for_context = for_context || !keeps_order(context) || is_crowded(context, block);
  if (for_context) {
    result = timed_wait(stats, [&] { return context.ordering().wait(epoch); });
    if (result.complete()) {
      context.host_work().end_context_wait(before);
      ThreadOrder::has_waited_for_context(context.handle());
      claim.settle();
    }
    idle_.cache_reclaimed(context);
  }
  if (!result.complete()) {  // the driver answers
    note_failure(context, result.error);
    block.state.store(BlockState::live);
    return std::nullopt;
  }
  end_zero_copy(block);
  if (for_context || CUPOOL_MUTATED("host-memory-without-a-fence")) {
    return put(block, [&] { return cache_.cache(block, life, life_now); });
  }
  const auto freed = put(block, [&] { return cache_.retire(block, epoch, life, life_now); });
  if (freed && cache_.retired_bytes() >= kFencedBytes) {
    const CUresult fenced = context.ordering().close_if_full({1, ~std::uint64_t{0}},
                                                             Ordering::IfBusy::skip);
    if (fenced != CUDA_SUCCESS) note_failure(context, fenced);
    idle_.cache_reclaimed(context);
  }
  return freed;
}

// A large block by itself may be retired, whatever its size.
bool HostMemory::is_crowded(Context& context, const Block& block) {
  const auto is_too_much = [&] {
    const std::uint64_t retired = cache_.retired_bytes();
    return retired != 0 && retired + block.capacity > kMostRetired;
  };
  if (!is_too_much()) return false;
  settle(context);
  cache_.reclaim(context.ordering().epochs().complete_up_to());
  return is_too_much();
}

// The order is the lane's or that of points, as in Frees.
bool HostMemory::keeps_order(Context& context) const {
  if (CUPOOL_MUTATED("host-free-forgets-the-order")) return true;
  if (Lane::is_open()) {
    if (LaneWork::any()) idle_.look_for_libraries();
    if (Lane::covers_free(driver_)) return true;
  }
  return !ThreadOrder::has_work() || ThreadOrder::frees(driver_, context);
}

// Records a fence, and looks whether the GPU has come to it. True: it has nothing else to do.
bool HostMemory::settle(Context& context) {
  idle_.look_for_libraries();
  const ContextVisit visit(context);
  if (!visit) return false;
  PendingWork::Claim claim(!several_contexts());
  Ordering& ordering = context.ordering();
  const EpochNumber epoch = ordering.epochs().join(0, 1);
  BlockList reclaimed;
  const CUresult result = ordering.poll(Ordering::Poll::all, &reclaimed);
  if (result != CUDA_SUCCESS) note_failure(context, result);
  if (!reclaimed.empty()) idle_.cache_or_release(context, reclaimed);
  if (result != CUDA_SUCCESS || ordering.epochs().complete_up_to() < epoch) return false;
  claim.settle();
  return true;
}

// Nothing is pending, as far as the hooks have seen. From time to time the GPU itself is asked. If
// it is busy all the same, work reaches it unseen, or some of cupool's own is under way.
bool HostMemory::verify_nothing(Context& context) {
  if (settle(context)) {
    suspicions_.store(0, std::memory_order_relaxed);
    return true;
  }
  if (!PendingWork::none()) return false;
  PendingWork::submitted();
  if (suspicions_.fetch_add(1, std::memory_order_relaxed) + 1 == kSuspicions) {
    PendingWork::distrust();
    CUPOOL_LOG(info, "the GPU was busy though no work was seen: freed page-locked memory waits for "
                     "a fence from now on");
  }
  return false;
}

// Kernels that were given its device pointer are complete, or covered by the block's fence.
void HostMemory::end_zero_copy(const Block& block) {
  constexpr HostReachable::Kind kKind = HostReachable::Kind::zero_copy;
  HostReachable& reachable = policy_.host_reachable();
  if (!reachable.any(kKind)) return;
  CUdeviceptr device = 0;
  if (driver_.cuMemHostGetDevicePointer_v2(&device, address_of(block), 0) != CUDA_SUCCESS) return;
  reachable.end(kKind, device, [] { return CUDA_SUCCESS; });
}

void HostMemory::note_first_cached() {
  if (first_cached_.load(std::memory_order_relaxed) == nullptr) return;
  if (void (*const call)() = first_cached_.exchange(nullptr)) call();
}

// Before the driver's call: another thread may get the address at once.
HostMemory::Given HostMemory::give_up(void* host) {
  Given given;
  if (held_.load(std::memory_order_relaxed) == 0) return given;
  const CUdeviceptr address = address_in(host);
  Block* const block = blocks_.find(address);
  if (block == nullptr) return given;
  const std::uint64_t word = block->state.word();
  if (block->address != address) return given;
  given.life = block->context->incarnation();
  given.refused = BlockStateCell::state_of(word) != BlockState::live || !block->state.claim(word);
  if (given.refused) return given;
  given.block = block;
  forget(*block);
  return given;
}

void HostMemory::given_up(const Given& given, bool freed) {
  Block& block = *given.block;
  Context& context = *block.context;
  if (freed || context.incarnation() != given.life) return delete_block(&block);
  held_.fetch_add(block.capacity, std::memory_order_relaxed);
  context.stats().gauge_add(Gauge::host_held_bytes, signed_bytes(block.capacity));
  PinnedMemory::add(address_of(block), block.capacity);
  block.state.store(BlockState::live);
  add_block(blocks_, &block);
}

void HostMemory::forget(Block& block) {
  blocks_.erase(&block);
  PinnedMemory::remove(address_of(block));
  held_.fetch_sub(block.capacity, std::memory_order_relaxed);
  block.context->stats().gauge_add(Gauge::host_held_bytes, -signed_bytes(block.capacity));
}

bool HostMemory::give_back() {
  Context* const home = home_.load(std::memory_order_acquire);
  if (home == nullptr || !cache_.any()) return false;
  const ContextVisit visit(*home, kLongestWaitForOthersNs);
  if (!visit || !home->usable()) return false;
  BlockList all = cache_.take(HostCache::Which::all);
  return release(*home, all);
}

// A free by the driver waits for the GPU, and a background thread must not: the end of the process
// and of the context wait for it.
bool HostMemory::give_back_unneeded() {
  Context* const home = home_.load(std::memory_order_acquire);
  if (home == nullptr || !cache_.any() || Serving::any_capture()) return false;
  const ContextVisit visit(*home);
  if (!visit || !home->usable() || !settle(*home)) return false;
  cache_.reclaim(home->ordering().epochs().complete_up_to());
  BlockList some = cache_.take(HostCache::Which::unneeded, kHostSlice);
  return release(*home, some);
}

// The caller is in a visit.
bool HostMemory::release(Context& context, BlockList& blocks) {
  if (blocks.empty()) return false;
  context.stats().add(Counter::host_returned_bytes_total, blocks.bytes);
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context.handle());
  while (Block* const block = blocks.pop()) {
    void* const address = address_of(*block);
    forget(*block);
    delete_block(block);
    if (!scope.ok()) continue;
    const CUresult result = driver_.cuMemFreeHost(address);
    if (cuda::is_passing_refusal(result)) driver_.cuMemFreeHost(address);
  }
  return true;
}

// First the cache, which takes nothing of this incarnation in any more.
void HostMemory::context_gone(Context& context, bool alone) {
  if (home_.load(std::memory_order_acquire) != &context) return;
  cache_.take(HostCache::Which::all);
  for (Block* const block :
       blocks_.extract([&](const Block& each) { return each.context == &context; })) {
    if (block->state.load() == BlockState::live) {
      context.stats().add(Counter::host_lost_bytes_total, block->requested);
    }
    PinnedMemory::remove(address_of(*block));
    held_.fetch_sub(block->capacity, std::memory_order_relaxed);
    context.stats().gauge_add(Gauge::host_held_bytes, -signed_bytes(block->capacity));
    if (alone) delete_block(block);
  }
  home_.store(nullptr, std::memory_order_release);
}

FoundMemory HostMemory::find(CUdeviceptr base, CUdeviceptr address) const {
  FoundMemory found;
  if (held_.load(std::memory_order_relaxed) == 0) return found;
  const Block* const block = blocks_.find(base);
  if (block == nullptr) return found;
  found.nobodys =
      block->state.load() != BlockState::live || address - base >= block->requested;
  if (!found.nobodys) found.host = block;
  return found;
}

FoundMemory HostMemory::find(CUdeviceptr address) const {
  if (held_.load(std::memory_order_relaxed) == 0) return {};
  return find(PinnedMemory::start_of(address), address);
}

void HostMemory::mark_shared_outside(CUdeviceptr address) {
  if (held_.load(std::memory_order_relaxed) == 0) return;
  Block* const block = blocks_.find(PinnedMemory::start_of(address));
  if (block != nullptr) block->shared_outside.store(true, std::memory_order_relaxed);
}

void HostMemory::fold() {
  const HostCache::Counts counts = cache_.take_counts();
  const Context* const home = home_.load(std::memory_order_acquire);
  DeviceStats& stats = home == nullptr ? stats::device(-1) : const_cast<Context*>(home)->stats();
  stats.add(Counter::host_malloc_calls_total, counts.hits);
  stats.add(Counter::host_served_total, counts.hits);
  stats.add(Counter::host_free_calls_total, counts.frees);
  if (home != nullptr) stats.gauge_set(Gauge::host_cached_bytes, signed_bytes(cache_.bytes()));
}

}  // namespace cupool::engine
