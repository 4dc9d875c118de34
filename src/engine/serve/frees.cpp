// SPDX-License-Identifier: Apache-2.0
// Freeing: a block is claimed and retired; FreePolicy decides which work the host waits for. Read
// with docs/compatibility.md, which states the promise of each mode.
#include "engine/serve/frees.h"

#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "engine/block/accounting.h"
#include "engine/context/thread_order.h"
#include "engine/reclaim/lane.h"
#include "engine/reclaim/message_calls.h"
#include "engine/serve/host_function.h"
#include "engine/serve/thread_limits.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mutation.h"
#include "util/uncancelled.h"

namespace cupool::engine {

using stats::Counter;
using stats::DeviceStats;
using stats::Gauge;

// Adds a block to the thread's batch. True: the batch has reached its threshold.
[[gnu::always_inline]] inline bool Frees::add_to_batch(ThreadCache& cache,
                                                       const ClaimedBlock& claimed) {
  const ThreadCache::Guard guard(cache);
  if (__builtin_expect(!claimed.is_alive(), 0)) {
    drop(claimed);
    return false;
  }
  Block& block = *claimed.block;
  Tally& tally = cache.tally;
  tally.count_free(block.requested, block.capacity);
  if (tally.is_due(cache.limits.tally)) tally.fold(claimed.context->stats());
  return cache.retire(&block);
}

// A free in a lane: the block is cached at once, since its next owner's work runs behind all work
// so far. What the thread has no room for goes to the shared cache. False: no side effect.
[[gnu::noinline]] bool Frees::free_in_lane(ThreadCache& cache, const ClaimedBlock& claimed,
                                           Waited waited) {
  Context& context = *claimed.context;
  Block& block = *claimed.block;
  if (!idle_.is_reusable_in_lane(context.device(), block)) return false;
  if (LaneWork::any()) idle_.look_for_libraries();
  DeviceStats* const unwaited = waited == Waited::no ? &context.stats() : nullptr;
  if (!Lane::covers_free(driver_, unwaited)) return false;
  const EpochNumber epoch = context.ordering().epochs().open();
  {
    const ThreadCache::Guard guard(cache);
    if (!claimed.is_alive()) {
      drop(claimed);
      return true;
    }
    block.lane_epoch = value_of(epoch);
    Tally& tally = cache.tally;
    tally.count_free(block.requested, block.capacity);
    const bool due = tally.is_due(cache.limits.tally) || tally.is_long();
    if (due || cache.limits.lane == 0) cache.limits = limits_of_thread(context);
    const bool cached = cache.idle.cache_one(&block, cache.limits.lane);
    if (cached) tally.reclaimed += signed_bytes(block.capacity);
    if (due) tally.fold(context.stats());
    if (cached) return true;
  }
  const ContextVisit visit(context);
  if (!visit || !claimed.is_alive()) return true;  // counted above
  BlockList surplus;
  surplus.push(&block);
  idle_.cache_or_release(context, surplus);
  return true;
}

// The common case only adds the block to the thread's batch, or in a lane to its cache. Exceptions:
// the mode or the program's host memory requires a wait, or the batch is full.
[[gnu::always_inline]] inline CUresult Frees::free_claimed(const ClaimedBlock& claimed) {
  Context& context = *claimed.context;
  using For = FreePolicy::Wait::For;
  const For what = policy_.wait_of(context).what;
  const bool waits = what != For::nothing && what != For::messages;
  ThreadCache* cache = waits ? nullptr : thread_cache(context);
  if (cache == nullptr) return free_waiting(claimed, what);
  const bool timed = is_timed();
  const std::uint64_t start = timed ? util::now_ns() : 0;
  if (!Lane::is_open() || !free_in_lane(*cache, claimed, Waited::no)) {
    Waited waited = Waited::no;
    if (!keeps_order(context, waited)) {
      return free_singly(claimed, util::now_ns(), Order::by_wait);
    }
    if (add_to_batch(*cache, claimed) || leaves_wait(what)) {
      return end_batch(claimed, *cache, start, waited);
    }
  }
  if (timed) context.stats().call_times().free.record(util::now_ns() - start, kTimedShare);
  return CUDA_SUCCESS;
}

std::optional<CUresult> Frees::try_free(CUdeviceptr address) {
  if (const CUresult refusal = refusal_in_host_function(driver_)) return refusal;
  if (!Serving::open()) return free_closed(address);
  ClaimedBlock claimed;
  const PointerMap::Claim claim = claim_block(blocks_, address, &claimed);
  if (claim != PointerMap::Claim::claimed) {
    return answer_unclaimed(driver_, address, claim, claimed);
  }
  return free_claimed(claimed);
}

[[gnu::noinline]] CUresult Frees::free_claimed_otherwise(const ClaimedBlock& claimed) {
  const util::Uncancelled throughout;  // the hot path has none
  if (claimed.is_alive()) return free_claimed(claimed);
  drop(claimed);
  return CUDA_SUCCESS;
}

bool Frees::try_free_live(CUdeviceptr address) {
  if (!Serving::open() || refusal_in_host_function(driver_) != CUDA_SUCCESS) return false;
  ClaimedBlock claimed;
  return claim_block(blocks_, address, &claimed) == PointerMap::Claim::claimed &&
         free_claimed(claimed) == CUDA_SUCCESS;
}

// The rest of a free that fills the batch. If this call is timed, it stands for itself only, since
// the longest calls are among these.
[[gnu::noinline]] CUresult Frees::end_batch(const ClaimedBlock& claimed, ThreadCache& cache,
                                            std::uint64_t start_ns, Waited waited) {
  const std::uint64_t start = start_ns != 0 ? start_ns : util::now_ns();
  const CUresult result = end_batch(claimed, cache, waited);
  claimed.context->stats().call_times().free.record(util::now_ns() - start);
  return result;
}

// Waits for copies and callbacks first, so that the block can go to the thread's batch as usual.
// Most frees of a program that copies between its kernels take this path.
[[gnu::noinline]] CUresult Frees::free_waiting(const ClaimedBlock& claimed,
                                               FreePolicy::Wait::For what) {
  Context& context = *claimed.context;
  const std::uint64_t start = util::now_ns();
  if (what == FreePolicy::Wait::For::context) return free_singly(claimed, start);
  ThreadCache* cache = thread_cache(context);
  // finish_free() meets a failure again, after the block is retired, and answers it.
  if (cache == nullptr) return free_singly(claimed, start);
  const WaitResult result = wait_.wait_for_host_work(context);
  Waited waited = result.waited ? Waited::yes : Waited::no;
  if (!result.complete()) return free_singly(claimed, start, Order::by_points, waited);
  if (!Lane::is_open() || !free_in_lane(*cache, claimed, waited)) {
    if (!keeps_order(context, waited)) {
      return free_singly(claimed, start, Order::by_wait, waited);
    }
    if (add_to_batch(*cache, claimed) || leaves_wait(what)) {
      return end_batch(claimed, *cache, start, waited);
    }
  }
  context.stats().call_times().free.record(util::now_ns() - start);
  return CUDA_SUCCESS;
}

// What the thread does next comes behind its work so far (contract 2). False: only if the free
// waits for it.
[[gnu::always_inline]] inline bool Frees::keeps_order(Context& context, Waited& waited) const {
  return !ThreadOrder::has_work() || marks_order(context, waited);
}

[[gnu::noinline]] bool Frees::marks_order(Context& context, Waited& waited) const {
  if (!ThreadOrder::frees(driver_, context)) return false;
  if (waited == Waited::no) {
    context.ordering().epochs().stalls_avoided().count();
    waited = Waited::no_and_counted;
  }
  return true;
}

CUresult Frees::free_singly(const ClaimedBlock& claimed, std::uint64_t start_ns, Order order,
                            Waited waited) {
  Context& context = *claimed.context;
  DeviceStats& stats = context.stats();
  // Before the block joins an epoch: another thread may record its fence at once, and a wait for
  // that fence does not cover work submitted after it.
  const HostWork::Mark before = context.host_work().begin_wait();
  EpochNumber epoch = kNoEpoch;
  {
    const ContextVisit visit(context);
    if (!visit || !claimed.is_alive()) {
      drop(claimed);
      return CUDA_SUCCESS;
    }
    stats.add(Counter::free_calls_total);
    stats.add(Counter::free_bytes_total, claimed.block->requested);
    stats::this_thread().add_frees(1);
    epoch = retire(*claimed.block);
  }
  const CUresult result = finish_free(claimed, before, epoch, order, waited);
  stats.call_times().free.record(util::now_ns() - start_ns);
  return result;
}

// Flushes the thread's batch and closes the open epoch with a fence. If another thread is recording
// a fence, the next fence covers this batch too. Then reclaims the thread's complete batches.
CUresult Frees::end_batch(const ClaimedBlock& claimed, ThreadCache& cache, Waited waited) {
  Context& context = *claimed.context;
  idle_.look_for_libraries();
  Ordering& ordering = context.ordering();
  const bool messages = leaves_wait(FreePolicy::Wait::For::nothing);
  EpochNumber epoch = ordering.epochs().open();
  std::uint64_t bytes_freed = 0;
  {
    const ThreadCache::Guard guard(cache);
    if (cache.tally.is_long()) cache.tally.fold(context.stats());
    cache.limits = limits_of_thread(context);
    cache.batch.renew(cache.limits.blocks, cache.limits.batch, cache.limits.few);
    bytes_freed = cache.batch.bytes();
    cache.flush(ordering.epochs());
    if (messages && !cache.in_flight.empty()) epoch = cache.in_flight.newest().epoch;
  }
  // The program's next message waits for this fence, and so must find it behind no later work.
  CUresult error = ordering.close(messages ? Ordering::IfBusy::wait : Ordering::IfBusy::skip);
  if (messages) leave_wait_to_messages(context, epoch);
  if (error == CUDA_SUCCESS) error = wait_.bound_pending(context, bytes_freed, waited);
  idle_.reclaim(context, cache);
  return wait_.answer_of_free(context, claimed.life, error);
}

// The driver's answer to a stream that it does not have: a destroyed one, or a default stream
// without a current context. Or one of a context whose sticky error is known (I7), or of a driver
// that has ended.
CUresult Frees::refusal_of(CUstream stream) const {
  const bool named =
      stream != nullptr && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
  CUcontext context = nullptr;
  const auto ask = [&] {
    return named ? driver_.cuStreamGetCtx(stream, &context) : driver_.cuCtxGetCurrent(&context);
  };
  CUresult result = ask();
  if (result != CUDA_SUCCESS) result = ask();  // a refusal may pass
  if (result == CUDA_SUCCESS) {
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    Context* const known = registry_.find(context);
    // A query could end a capture.
    if (known != nullptr && !known->usable() && !Serving::any_capture()) {
      const ContextVisit visit(*known);
      const cuda::RelaxedCaptureScope relaxed(driver_);
      if (visit) result = driver_.cuStreamQuery(stream);
    }
  }
  if (cuda::is_final(result)) return result;
  const bool no_stream = result == CUDA_ERROR_INVALID_HANDLE ||
                         result == CUDA_ERROR_INVALID_CONTEXT ||
                         result == CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return no_stream ? result : CUDA_SUCCESS;
}

// The block is in no epoch until the stream's work is ordered before the context's fences.
std::optional<CUresult> Frees::try_free_in_stream(CUdeviceptr address, CUstream stream) {
  if (const CUresult refusal = refusal_in_host_function(driver_)) return refusal;
  if (blocks_.find(address) != nullptr) {  // asks nothing for the program's own pools
    if (const CUresult refusal = refusal_of(stream)) return driver_frees_.refuse(address, refusal);
  }
  const std::uint64_t start = util::now_ns();
  ClaimedBlock claimed;
  const PointerMap::Claim claim = claim_block(blocks_, address, &claimed);
  if (claim != PointerMap::Claim::claimed) {
    return answer_unclaimed(driver_, address, claim, claimed);
  }
  Context& context = *claimed.context;
  const bool ordered = context.foreign_streams().order_behind(stream);
  const ContextVisit visit(context);
  if (!visit || !claimed.is_alive()) {
    drop(claimed);
    return CUDA_SUCCESS;
  }
  context.stats().add(Counter::free_calls_total);
  context.stats().add(Counter::free_bytes_total, claimed.block->requested);
  stats::this_thread().add_frees(1);
  if (ordered) {
    retire(*claimed.block);
  } else {
    count_retired(*claimed.block);
    set_aside(*claimed.block);
    if (!cuda::has_shut_down(driver_)) {
      CUPOOL_WARN_ONCE(
          "the driver refused to order a cudaFreeAsync in a stream of another context; the block "
          "is set aside, and not reused. Free it in a stream of its own context");
    }
  }
  context.stats().call_times().free.record(util::now_ns() - start);
  return CUDA_SUCCESS;
}

// For a free while the engine does not serve. In `ordered` mode the wait is left to the time when
// memory is needed, unless a capture may forbid the free.
std::optional<CUresult> Frees::free_closed(CUdeviceptr address) {
  if (Serving::any_capture() || policy_.mode() != config::FreeMode::ordered) {
    return driver_frees_.free_as_driver(address);
  }
  ClaimedBlock claimed;
  const PointerMap::Claim claim = claim_block(blocks_, address, &claimed);
  if (claim != PointerMap::Claim::claimed) {
    return answer_unclaimed(driver_, address, claim, claimed);
  }
  return free_singly(claimed, util::now_ns());
}

// The waits of a free whose block is retired: the policy's, and those that bound pending bytes.
CUresult Frees::finish_free(const ClaimedBlock& claimed, const HostWork::Mark& before,
                            EpochNumber epoch, Order order, Waited waited) {
  Context& context = *claimed.context;
  using For = FreePolicy::Wait::For;
  if (CUPOOL_MUTATED("obvious-mapping")) idle_.cache_reclaimed(context);
  FreePolicy::Wait wait = policy_.wait_of(context);
  const bool waits = wait.what == For::context;
  Waited waits_at_all = wait.what == For::host_work ? Waited::yes : waited;
  if (!waits && (order == Order::by_wait || !keeps_order(context, waits_at_all))) {
    wait = {For::context, Counter::free_waits_order_total};
  }
  if (waits_at_all == Waited::no_and_counted) waited = waits_at_all;
  WaitResult result;
  if (wait.what == For::host_work) {
    result = wait_.wait_for_host_work(context, waited);
    if (result.waited) waited = Waited::yes;
  }
  // The program may rely on the wait. A wait for the whole context covers host-memory work too.
  if (wait.what == For::context || cuda::is_refusal(result.error)) {
    result = wait_.wait_for_context(context, before, epoch, wait.reason, waited);
    if (result.waited) waited = Waited::yes;
  }
  CUresult error = result.error;
  // By the same reading of the mode: it may become `sync` meanwhile.
  if (wait.reason != Counter::free_waits_sync_total && result.complete()) {
    error = context.ordering().close();
    if (error == CUDA_SUCCESS) error = wait_.bound_pending(context, claimed.capacity, waited);
  }
  if (leaves_wait(wait.what)) leave_wait_to_messages(context, epoch);
  return wait_.answer_of_free(context, claimed.life, error);
}

// Also if the mode has changed since the free looked at it.
bool Frees::leaves_wait(FreePolicy::Wait::For waits_for) const {
  return waits_for != FreePolicy::Wait::For::context && policy_.knows_of_others();
}

// Where no fence can be recorded, a later wait would cover later work, and so the free waits.
void Frees::leave_wait_to_messages(Context& context, EpochNumber epoch) {
  Ordering& ordering = context.ordering();
  if (!ordering.fence(epoch) && ordering.wait(epoch).complete()) return;
  ordering.epochs().set_unwaited(epoch);
  MessageCalls::note_own(&context, epoch);
  MessageCalls::count_free();
}

}  // namespace cupool::engine
