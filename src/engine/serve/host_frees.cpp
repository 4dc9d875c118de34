// SPDX-License-Identifier: Apache-2.0
// A free waits as one of device memory does (engine/serve/frees), and its block is retired behind a
// fence; or it is cached at once, where the GPU is known to have nothing to do. The next owner is
// the host, so no order on the device is enough.
#include "engine/serve/host_frees.h"

#include <algorithm>

#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "engine/context/thread_order.h"
#include "engine/host/host_look.h"
#include "engine/reclaim/lane.h"
#include "engine/reclaim/pending_work.h"
#include "engine/serve/failure.h"
#include "engine/serve/giving_back.h"
#include "engine/serve/host_function.h"
#include "stats/stall.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mutation.h"
#include "util/uncancelled.h"

namespace cupool::engine {

using stats::Counter;
using stats::DeviceStats;

namespace {

// Retired bytes beyond which a free waits, as the driver's own would.
constexpr std::uint64_t kMostRetired = 64ull << 20;
// Retired bytes that get a fence at the free, since memory of this size is worth a microsecond.
constexpr std::uint64_t kFencedBytes = 1ull << 20;
// Looks in a row that found the GPU busy although no work was seen, before that is believed.
constexpr unsigned kSuspicions = 3;

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

std::optional<CUresult> HostFrees::free(Block& block, std::uint64_t word) {
  Context& context = *block.context;
  const std::uint64_t life = context.incarnation();
  // Read after the life: a context that ends is marked first.
  if (!context.usable()) return std::nullopt;
  if (PendingWork::none() && runs_no_host_functions() &&
      !policy_.host_reachable().any(HostReachable::Kind::zero_copy) && !look_is_due()) {
    if (!block.state.claim(word)) return CUDA_ERROR_INVALID_VALUE;
    const auto is_alive = [&] { return context.incarnation() == life; };
    return put(block, life, [&] { return cache_.cache(block, is_alive); });
  }
  const util::Uncancelled throughout;
  if (const CUresult refusal = refusal_in_host_function(driver_)) return refusal;
  if (!block.state.claim(word)) return CUDA_ERROR_INVALID_VALUE;
  return free_claimed(block, life);
}

// A claimed block whose context has ended is this thread's alone, whether or not what follows from
// that end has found it in the map. A record that stays there would be found as that of its next
// life.
void HostFrees::drop_lost(Block& block) {
  blocks_.forget(block);
  delete_block(&block);
}

// The driver frees it. Claimed, it was passed over by what follows from the end of its context,
// which may come between the two looks.
std::nullopt_t HostFrees::leave_to_driver(Block& block, std::uint64_t life) {
  const Context& context = *block.context;
  bool is_lost = context.incarnation() != life;
  if (!is_lost) {
    const std::uint64_t word = block.state.store(BlockState::live);
    ContextLife::fence();
    is_lost = context.incarnation() != life && block.state.claim(word);
  }
  if (is_lost) drop_lost(block);
  return std::nullopt;
}

// Puts a block into the cache, as `put` does. `std::nullopt`: there is no room for it, and the
// driver frees it.
template <typename Put>
std::optional<CUresult> HostFrees::put(Block& block, std::uint64_t life, const Put& put) {
  using Taken = HostCache::Taken;
  Taken taken = put();
  if (__builtin_expect(taken == Taken::full, 0) && make_room(*block.context, block.capacity)) {
    taken = put();
  }
  if (taken == Taken::full) return leave_to_driver(block, life);
  if (__builtin_expect(taken == Taken::gone, 0)) drop_lost(block);
  if (first_cached_.load(std::memory_order_relaxed) != nullptr) {
    if (void (*const call)() = first_cached_.exchange(nullptr)) call();
  }
  return CUDA_SUCCESS;
}

// The driver's free of others takes as long as that of the block itself would, which waits for the
// GPU, too; the block is more likely to be wanted again. The wait is in no visit.
bool HostFrees::make_room(Context& context, std::uint64_t bytes) {
  const util::Uncancelled throughout;
  if (bytes > cache_.limit() || Serving::any_capture()) return false;
  if (cache_.bytes() + bytes <= cache_.limit()) return true;  // others have taken some
  Ordering& ordering = context.ordering();
  const std::uint64_t life = context.incarnation();
  const WaitResult waited = ordering.wait(ordering.epochs().join(0, 1));
  idle_.cache_reclaimed(context);
  if (!waited.complete()) {
    note_failure(context, life, waited.error);
    return false;
  }
  const ContextVisit visit(context);
  if (!visit || !context.usable()) return false;
  const std::uint64_t after = cache_.bytes() + bytes;
  const std::uint64_t limit = cache_.limit();
  if (after <= limit) return true;
  const std::uint64_t missing = after - limit;
  const auto is_quiet = [&] { return PendingWork::none() || settle(context); };
  using Which = HostCache::Which;
  std::uint64_t released = 0;
  for (const Which which : {Which::unneeded, Which::older, Which::idle}) {
    if (released < missing && (released == 0 || is_quiet())) {
      released += release(context, which, missing - released, is_quiet);
    }
  }
  cache_.end_turn();
  return released != 0;
}

// As of device memory: what touches host memory is waited for, and what this thread does next comes
// behind its work so far (contract 2). The epoch covers all work of the context until now.
std::optional<CUresult> HostFrees::free_claimed(Block& block, std::uint64_t life) {
  Context& context = *block.context;
  DeviceStats& stats = context.stats();
  const auto is_alive = [&] { return context.incarnation() == life; };
  if (PendingWork::none() && verify_nothing(context)) {
    end_zero_copy(block);
    return put(block, life, [&] { return cache_.cache(block, is_alive); });
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
    note_failure(context, life, result.error);
    return leave_to_driver(block, life);
  }
  end_zero_copy(block);
  if (for_context || CUPOOL_MUTATED("host-memory-without-a-fence")) {
    return put(block, life, [&] { return cache_.cache(block, is_alive); });
  }
  const auto freed = put(block, life, [&] { return cache_.retire(block, epoch, is_alive); });
  if (freed && cache_.retired_bytes() >= kFencedBytes) {
    const CUresult fenced = context.ordering().close(Ordering::IfBusy::skip);
    if (fenced != CUDA_SUCCESS) note_failure(context, life, fenced);
    if (context.ordering().epochs().complete_up_to() >= epoch) claim.settle();
    idle_.cache_reclaimed(context);
  }
  return freed;
}

// A large block by itself may be retired, whatever its size.
bool HostFrees::is_crowded(Context& context, const Block& block) {
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
bool HostFrees::keeps_order(Context& context) const {
  if (CUPOOL_MUTATED("host-free-forgets-the-order")) return true;
  if (Lane::is_open()) {
    if (LaneWork::any()) idle_.look_for_libraries();
    if (Lane::covers_free(driver_)) return true;
  }
  return !ThreadOrder::has_work() || ThreadOrder::frees(driver_, context);
}

// Records a fence, and looks whether the GPU has come to it. True: it has nothing else to do.
bool HostFrees::settle(Context& context) {
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

bool HostFrees::settle(Context& context, Patience& patience) {
  PendingWork::Claim claim(!several_contexts());
  EpochNumber everything = kNoEpoch;
  for (;;) {
    const std::uint64_t left_ns = std::max<std::uint64_t>(patience.left_ns(), 1);
    const ContextVisit visit(context, std::min(left_ns, kLongestWaitForOthersNs));
    if (!visit) return context.gone();
    Ordering& ordering = context.ordering();
    if (everything == kNoEpoch) everything = ordering.epochs().join(0, 1);
    if (!ordering.fence(everything)) return false;
    const WaitResult result = ordering.wait(everything, std::min(left_ns, kOneVisitNs));
    idle_.cache_reclaimed(context);
    if (result.complete()) {
      claim.settle();
      return true;
    }
    if (!result.worth_repeating()) note_failure(context, result.error);
    if (!result.worth_repeating() || patience.over()) return false;
  }
}

// Nothing is pending, as far as the hooks have seen. From time to time the GPU itself is asked. If
// it is busy all the same, work reaches it unseen, or some of cupool's own is under way.
bool HostFrees::verify_nothing(Context& context) {
  // An idle GPU needs a moment to pass an event.
  const std::uint64_t start_ns = util::now_ns();
  do {
    if (settle(context)) {
      if (suspicions_.load(std::memory_order_relaxed) != 0) {  // a line that all frees read
        suspicions_.store(0, std::memory_order_relaxed);
      }
      return true;
    }
  } while (PendingWork::none() && util::now_ns() - start_ns < stats::kShortestStallNs);
  if (!PendingWork::none()) return false;
  PendingWork::submitted();
  if (suspicions_.fetch_add(1, std::memory_order_relaxed) + 1 == kSuspicions) {
    PendingWork::distrust();
    CUPOOL_LOG(info,
               "the GPU was busy though no work was seen: freed page-locked memory waits for "
               "a fence from now on");
  }
  return false;
}

// Kernels that were given its device pointer are complete, or covered by the block's fence.
void HostFrees::end_zero_copy(const Block& block) {
  constexpr HostReachable::Kind kKind = HostReachable::Kind::zero_copy;
  HostReachable& reachable = policy_.host_reachable();
  if (!reachable.any(kKind)) return;
  const Context& context = *block.context;
  const cuda::ContextScope scope(driver_, context.handle());  // the thread may have none
  CUdeviceptr device = 0;
  if (!scope.ok() || driver_.cuMemHostGetDevicePointer_v2(&device, HostBlocks::address_of(block),
                                                          0) != CUDA_SUCCESS) {
    return;
  }
  reachable.end(kKind, device, [] { return CUDA_SUCCESS; });
}

}  // namespace cupool::engine
