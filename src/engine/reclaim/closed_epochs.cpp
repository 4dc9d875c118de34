// SPDX-License-Identifier: Apache-2.0
// Fences. Sources for the work that an event of a context covers: CUDA Driver API,
// cuCtxRecordEvent; docs/measurements.
#include "engine/reclaim/closed_epochs.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>

#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "engine/reclaim/captures.h"
#include "engine/reclaim/serving.h"
#include "stats/stall.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mutation.h"
#include "util/uncancelled.h"

namespace cupool::engine {

using stats::Counter;

ClosedEpochs::ClosedEpochs(const cuda::Driver& driver, CUcontext context, stats::DeviceStats& stats,
                           Epochs& epochs, const Captures& captures)
    : driver_(driver),
      context_(context),
      stats_(stats),
      epochs_(epochs),
      captures_(captures),
      free_places_(1),
      can_record_(driver.cuCtxRecordEvent != nullptr) {}

void ClosedEpochs::adopt(EpochNumber epoch, BlockList& blocks) {
  epochs_.count_held(static_cast<std::ptrdiff_t>(blocks.count));
  if (epoch <= epochs_.complete_up_to()) return reclaimed_.splice(blocks);
  // If an epoch could not be closed, its blocks are in a later epoch. Any later one is correct.
  for (Epoch& closed : closed_) {
    if (closed.number >= epoch) return closed.blocks.splice(blocks);
  }
  epochs_.put_back(blocks);
}

CUresult ClosedEpochs::record_by_free() {
  const EpochNumber before = closed_.empty() ? kNoEpoch : closed_.back().number;
  const CUresult result = record(IfEmpty::leave);
  if (result != CUDA_SUCCESS || closed_.empty() || closed_.back().number == before) return result;
  closed_.back().by_free = true;
  return look_at_fences();
}

bool ClosedEpochs::fence(EpochNumber epoch) {
  if (first_fenced_from(epoch) == nullptr) record(IfEmpty::close);
  return first_fenced_from(epoch) != nullptr;
}

// Fences complete in the order of their records, so the first pending one ends the loop.
CUresult ClosedEpochs::look_at_fences() {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  CUresult result = CUDA_SUCCESS;
  EpochNumber complete = kNoEpoch;
  for (Epoch& epoch : closed_) {
    if (epoch.fence == nullptr) continue;
    const CUresult state = query(epoch);
    if (state != CUDA_SUCCESS) {
      if (state == CUDA_ERROR_NOT_READY) {
        count_stalls_avoided(epoch);
      } else {
        result = state;
      }
      break;
    }
    complete = epoch.number;
  }
  reclaim_up_to(complete);
  return result;
}

// While a fence is pending, so is all work behind which a later free came. Such frees count if a
// younger fence, recorded after them, is old enough. The free that recorded the pending one came
// behind the work that it covers.
void ClosedEpochs::count_stalls_avoided(const Epoch& pending) {
  if (!epochs_.stalls_avoided().has_new()) return;
  const std::uint64_t now = util::now_ns();
  const auto old_enough = std::find_if(closed_.rbegin(), closed_.rend(), [now](const Epoch& epoch) {
    return epoch.fence != nullptr && now - epoch.fenced_ns >= stats::kShortestStallNs;
  });
  if (old_enough == closed_.rend() || old_enough->number < pending.number) return;
  const bool own = pending.by_free && pending.unwaited != 0;
  stats_.add(Counter::frees_unwaited_busy_total,
             epochs_.stalls_avoided().take(pending.unwaited - (own ? 1 : 0), old_enough->unwaited));
}

bool ClosedEpochs::has_nothing_pending() {
  const auto all_complete = [this] {
    return look_at_fences() == CUDA_SUCCESS && epochs_.complete_up_to() >= previous(epochs_.open());
  };
  if (!all_complete()) return false;
  const EpochNumber before = epochs_.open();
  return record(IfEmpty::close) == CUDA_SUCCESS && epochs_.open() != before && all_complete();
}

BlockList ClosedEpochs::pop_reclaimed() {
  if (CUPOOL_MUTATED("obvious-mapping")) {
    BlockList freed = epochs_.pop_all();
    reclaimed_.splice(freed);
  }
  BlockList taken;
  taken.splice(reclaimed_);
  epochs_.count_held(-static_cast<std::ptrdiff_t>(taken.count));
  return taken;
}

EpochNumber ClosedEpochs::oldest() const {
  const EpochNumber complete = epochs_.complete_up_to();
  const auto oldest = std::find_if(closed_.begin(), closed_.end(), [complete](const Epoch& epoch) {
    return epoch.number > complete;
  });
  return oldest == closed_.end() ? epochs_.open() : oldest->number;
}

EpochNumber ClosedEpochs::newest_with_frees() const {
  const auto newest = std::find_if(closed_.rbegin(), closed_.rend(), [](const Epoch& epoch) {
    return epoch.bytes != 0 || !epoch.blocks.empty();
  });
  return newest == closed_.rend() ? kNoEpoch : newest->number;
}

EpochNumber ClosedEpochs::close_unfenced() {
  close(Fence::none, IfEmpty::leave);
  return previous(epochs_.open());
}

// An epoch with a waiting thread stays in the queue; the thread finds its blocks gone. Its event
// belongs to the driver and is not used again.
void ClosedEpochs::abandon() {
  epochs_.abandon();
  reclaimed_ = BlockList{};
  spare_events_.clear();
  can_record_ = driver_.cuCtxRecordEvent != nullptr;
  for (Epoch& epoch : closed_) {
    epoch.fence = nullptr;
    epoch.blocks = BlockList{};
    epoch.bytes = 0;
  }
  for (auto next = closed_.begin(); next != closed_.end();) {
    const auto epoch = next++;
    if (epoch->waiters == 0) free_places_.splice(free_places_.begin(), closed_, epoch);
  }
}

// An empty epoch may get a fence, which also covers older epochs closed without one. The epoch is
// closed before the record, so that later frees need a later fence.
CUresult ClosedEpochs::close(Fence with, IfEmpty if_empty) {
  const bool with_fence = with == Fence::recorded;
  if (!has_free_place()) return CUDA_ERROR_NOT_PERMITTED;
  CUevent fence = nullptr;
  CUresult result = with_fence ? create_event(&fence) : CUDA_SUCCESS;
  if (result != CUDA_SUCCESS) return result;
  Epochs::Closed closing;
  if (!epochs_.close(if_empty, &closing)) {
    if (with_fence) keep_event(fence);
    return CUDA_SUCCESS;
  }
  if (with_fence) result = driver_.cuCtxRecordEvent(context_, fence);
  if (result != CUDA_SUCCESS) {
    keep_event(fence);
    epochs_.reopen(closing);
    return result;
  }
  if (with_fence) stats_.add(Counter::fences_total, 1);
  closed_.splice(closed_.end(), free_places_, free_places_.begin());
  Epoch& epoch = closed_.back();
  epoch = Epoch{};
  epoch.number = closing.counts.number;
  epoch.fence = fence;
  epoch.blocks = closing.blocks;
  epoch.bytes = closing.counts.bytes;
  // After the record: a free that is not counted yet comes behind the work that the fence covers.
  epoch.unwaited = epochs_.stalls_avoided().frees();
  epoch.fenced_ns = with_fence ? util::now_ns() : 0;
  return CUDA_SUCCESS;
}

// Asked before the epoch is closed: without host memory it stays open, and a later call closes it.
// There is always one place, so a wait for the oldest epoch frees one, or finds one free, unless
// another thread has yet to return from its own wait.
bool ClosedEpochs::has_free_place() {
  if (!free_places_.empty()) return true;
  try {
    free_places_.emplace_back();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// Without host memory the event is lost.
void ClosedEpochs::keep_event(CUevent event) {
  try {
    spare_events_.push_back(event);
  } catch (const std::bad_alloc&) {
  }
}

CUresult ClosedEpochs::create_event(CUevent* event) {
  if (!spare_events_.empty()) {
    *event = spare_events_.back();
    spare_events_.pop_back();
    return CUDA_SUCCESS;
  }
  const cuda::ContextScope scope(driver_, context_);
  if (!scope.ok()) return scope.result_of_context();
  return driver_.cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
}

ClosedEpochs::Epoch* ClosedEpochs::first_fenced_from(EpochNumber epoch) {
  for (Epoch& closed : closed_) {
    if (closed.number >= epoch && closed.fence != nullptr) return &closed;
  }
  return nullptr;
}

// An epoch stays in the queue while a thread waits for its fence.
void ClosedEpochs::reclaim_up_to(EpochNumber up_to) {
  epochs_.set_complete(up_to);
  for (Epoch& epoch : closed_) {
    if (epoch.number > up_to) break;
    epochs_.settle(epoch.bytes);
    epoch.bytes = 0;
    reclaimed_.splice(epoch.blocks);
  }
  while (!closed_.empty() && closed_.front().number <= up_to && closed_.front().waiters == 0) {
    if (closed_.front().fence != nullptr) keep_event(closed_.front().fence);
    free_places_.splice(free_places_.begin(), closed_, closed_.begin());
  }
}

// A stream of this context may have joined a capture of another one (I3).
bool ClosedEpochs::captures_forbid() const {
  if (CUPOOL_MUTATED("record-in-capture")) return false;
  if (CUPOOL_MUTATED("counts-captures-by-context")) return captures_.any();
  return Serving::any_capture();
}

CUresult ClosedEpochs::record(IfEmpty if_empty) {
  if (!can_record_ || captures_forbid() || Serving::stepped_aside()) return CUDA_SUCCESS;
  CUresult result = close(Fence::recorded, if_empty);
  if (cuda::is_passing_refusal(result)) result = close(Fence::recorded, if_empty);
  if (result == CUDA_SUCCESS || cuda::is_capture_refusal(result)) return CUDA_SUCCESS;
  if (cuda::is_final(result)) return result;
  // If another thread's exit shuts the driver down meanwhile, this error may hide that.
  CUcontext current = nullptr;
  const CUresult driver = driver_.cuCtxGetCurrent(&current);
  if (driver == CUDA_ERROR_DEINITIALIZED) return driver;
  // In a host function of the program the driver refuses every call, or there was no host memory.
  // The next free elsewhere records.
  if (result == CUDA_ERROR_NOT_PERMITTED || driver == CUDA_ERROR_NOT_PERMITTED) return CUDA_SUCCESS;
  can_record_ = false;
  CUPOOL_WARN_ONCE(
      "cuCtxRecordEvent failed with error %d; frees synchronise the context instead (slower, still "
      "correct)",
      static_cast<int>(result));
  return CUDA_SUCCESS;
}

CUresult ClosedEpochs::query(Epoch& epoch) {
  if (epoch.seen_complete) return CUDA_SUCCESS;
  stats_.add(Counter::fence_queries_total, 1);
  CUresult state = driver_.cuEventQuery(epoch.fence);
  if (CUPOOL_MUTATED("reuse-before-complete") && state == CUDA_ERROR_NOT_READY) {
    state = CUDA_SUCCESS;
  }
  if (state == CUDA_SUCCESS) epoch.seen_complete = true;
  return state;
}

WaitResult ClosedEpochs::wait_for_fence(EpochNumber epoch, OrderingLock& lock,
                                        std::uint64_t limit_ns) {
  Epoch* fenced = first_fenced_from(epoch);
  if (fenced == nullptr) {
    const CUresult result = record(IfEmpty::close);
    if (result != CUDA_SUCCESS) return WaitResult::answered(result);
    fenced = first_fenced_from(epoch);
  }
  if (fenced == nullptr) return WaitResult::not_possible();
  const WaitResult result = wait_for(fenced, lock, limit_ns);
  if (limit_ns == 0 && cuda::is_refusal(result.error)) {
    return {WaitResult::Outcome::not_possible, result.waited};
  }
  return result;
}

WaitResult ClosedEpochs::wait_for(Epoch* fenced, OrderingLock& lock, std::uint64_t limit_ns) {
  const EpochNumber number = fenced->number;
  const CUevent fence = fenced->fence;
  ++fenced->waiters;
  const bool keeps_lock = CUPOOL_MUTATED("waits-with-lock");
  if (!keeps_lock) lock.unlock();
  WaitResult result;
  {
    const cuda::RelaxedCaptureScope relaxed(driver_);
    stats_.add(Counter::fence_queries_total, 1);
    CUresult answer = driver_.cuEventQuery(fence);
    const bool waits = answer == CUDA_ERROR_NOT_READY;
    if (waits) answer = limit_ns == 0 ? wait_for_event(fence) : wait_at_most(fence, limit_ns);
    result = WaitResult::answered(answer);
    result.waited = waits;
  }
  if (!keeps_lock) lock.lock();
  // The queue may have changed: find the epoch again. Its waiter count kept it there.
  for (Epoch& closed : closed_) {
    if (closed.number != number) continue;
    --closed.waiters;
    if (result.complete()) closed.seen_complete = true;
    break;
  }
  if (result.complete()) reclaim_up_to(number);
  return result;
}

// A program whose run-ahead is limited waits often and briefly. Queries see the end some
// microseconds sooner than the driver's wait (measured). For a long wait the driver is used, which
// may sleep.
CUresult ClosedEpochs::wait_for_event(CUevent fence) const {
  constexpr std::uint64_t kAskNs = 200'000;
  const std::uint64_t start = util::now_ns();
  CUresult answer = CUDA_ERROR_NOT_READY;  // to the caller's query
  while (answer == CUDA_ERROR_NOT_READY && util::now_ns() < start + kAskNs) {
    answer = driver_.cuEventQuery(fence);
  }
  return answer == CUDA_ERROR_NOT_READY ? driver_.cuEventSynchronize(fence) : answer;
}

CUresult ClosedEpochs::wait_at_most(CUevent fence, std::uint64_t limit_ns) const {
  const util::Uncancelled throughout;
  const std::uint64_t deadline = util::now_ns() + limit_ns;
  CUresult answer = CUDA_ERROR_NOT_READY;  // to the caller's query
  while (answer == CUDA_ERROR_NOT_READY && util::now_ns() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    answer = driver_.cuEventQuery(fence);
  }
  return answer;
}

}  // namespace cupool::engine
