// SPDX-License-Identifier: Apache-2.0
// The waits of an ordering: for a fence, or for the whole context if no event of it can be
// recorded; and their effect on capturing streams.
#include "engine/reclaim/ordering.h"

#include <chrono>
#include <thread>

#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "engine/reclaim/serving.h"
#include "util/mutation.h"

namespace cupool::engine {

void Ordering::adopt(EpochNumber epoch, BlockList& blocks) {
  const OrderingGuard lock(mutex_);
  closed_.adopt(epoch, blocks);
}

CUresult Ordering::close(IfBusy if_busy) {
  OrderingLock lock(mutex_, std::defer_lock);
  if (if_busy == IfBusy::wait) {
    lock.lock();
  } else if (!lock.try_lock()) {
    return CUDA_SUCCESS;
  }
  return closed_.record_by_free();
}

bool Ordering::fence(EpochNumber epoch) {
  const OrderingGuard lock(mutex_);
  return epoch <= epochs_.complete_up_to() || closed_.fence(epoch);
}

WaitResult Ordering::wait(EpochNumber epoch, std::uint64_t limit_ns) {
  OrderingLock lock(mutex_);
  if (epoch <= epochs_.complete_up_to()) return {};
  const WaitResult fenced = closed_.wait_for_fence(epoch, lock, limit_ns);
  if (fenced.outcome != WaitResult::Outcome::not_possible) return fenced;
  // A capture, which a synchronisation of the context would invalidate, or an error that may pass.
  const bool by_free = closed_.can_record() || Serving::any_capture() || captures_.is_beginning();
  WaitResult result = by_free ? barriers_.wait(lock) : synchronize(lock);
  result.waited = result.waited || fenced.waited;
  return result;
}

EpochNumber Ordering::newest() const {
  const OrderingGuard lock(mutex_);
  if (!epochs_.is_open_empty()) return epochs_.open();
  const EpochNumber closed = closed_.newest_with_frees();
  // After the engine has stepped aside the driver is asked instead of a fence.
  return closed != kNoEpoch && Serving::stepped_aside() ? epochs_.open() : closed;
}

WaitResult Ordering::wait_for_oldest(bool* ran_dry) {
  EpochNumber oldest = kNoEpoch;
  {
    const OrderingGuard lock(mutex_);
    oldest = closed_.oldest();
  }
  const WaitResult result = wait(oldest);
  if (ran_dry != nullptr && result.waited && result.complete()) *ran_dry = has_run_dry();
  return result;
}

// Without events of contexts the wait was one for the whole context. False if no fence can be
// recorded now.
bool Ordering::has_run_dry() {
  const OrderingGuard lock(mutex_);
  return closed_.can_record() ? closed_.has_nothing_pending() : !Serving::any_capture();
}

// False, without the lock: epoch `enough` is complete.
bool Ordering::lock_unless_complete(EpochNumber enough, OrderingLock& lock) const {
  // About 20 us, as long as a few fences take. Sleeping in a mutex and waking up takes longer.
  constexpr unsigned kTries = 8;
  constexpr unsigned kLooks = 64;  // between two tries
  if (lock.try_lock()) return true;
  for (unsigned tries = 1; !lock.owns_lock() && tries < kTries; ++tries) {
    for (unsigned looks = 0; looks < kLooks; ++looks, relax()) {
      if (epochs_.complete_up_to() >= enough) return false;
    }
    if (!lock.try_lock() && tries > kTries / 2) sched_yield();
  }
  if (!lock.owns_lock()) lock.lock();
  return true;
}

CUresult Ordering::poll(Poll which, BlockList* reclaimed, std::optional<EpochNumber> enough) {
  OrderingLock lock(mutex_, std::defer_lock);
  if (!enough.has_value()) {
    lock.lock();
  } else if (!lock_unless_complete(*enough, lock)) {
    return CUDA_SUCCESS;
  }
  CUresult result = CUDA_SUCCESS;
  if (which == Poll::all) result = closed_.record(ClosedEpochs::IfEmpty::leave);
  const CUresult looked = closed_.look_at_fences();
  BlockList taken = closed_.pop_reclaimed();
  reclaimed->splice(taken);
  return looked == CUDA_SUCCESS ? result : looked;
}

BlockList Ordering::pop_reclaimed() {
  const OrderingGuard lock(mutex_);
  return closed_.pop_reclaimed();
}

EpochNumber Ordering::begin_synchronize() {
  const OrderingGuard lock(mutex_);
  return closed_.close_unfenced();
}

void Ordering::end_synchronize(EpochNumber before) {
  if (Serving::stepped_aside()) return;
  const OrderingGuard lock(mutex_);
  if (CUPOOL_MUTATED("harvest-later-frees")) before = closed_.close_unfenced();
  closed_.reclaim_up_to(before);
}

void Ordering::abandon() {
  const OrderingGuard lock(mutex_);
  closed_.abandon();
  barriers_.abandon();
  captures_.abandon();
}

WaitResult Ordering::synchronize(OrderingLock& lock) {
  const EpochNumber before = closed_.close_unfenced();
  captures_.synchronisation_begins();
  lock.unlock();
  if (CUPOOL_MUTATED("synchronises-into-capture")) {
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  CUresult result = CUDA_SUCCESS;
  {
    const cuda::RelaxedCaptureScope relaxed(driver_);
    const cuda::ContextScope scope(driver_, context_);
    result = scope.ok() ? driver_.cuCtxSynchronize() : scope.result_of_context();
    if (scope.ok() && cuda::is_passing_refusal(result)) result = driver_.cuCtxSynchronize();
  }
  lock.lock();
  captures_.synchronisation_ends();
  if (result == CUDA_SUCCESS) closed_.reclaim_up_to(before);
  return WaitResult::answered_for_context(result);
}

}  // namespace cupool::engine
