// Epochs and fences. Source for what an event of a context covers: CUDA Driver API,
// cuCtxRecordEvent, and docs/measurements.
#include "core/ordering.h"

#include <algorithm>

#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "util/log.h"

namespace cupool::core {

using stats::Counter;

Ordering::Ordering(const cuda::Driver& driver, CUcontext context, stats::DeviceStats& stats)
    : driver_(driver),
      context_(context),
      stats_(stats),
      can_record_(driver.cuCtxRecordEvent != nullptr) {}

EpochNumber Ordering::retire(Block* block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  open_.push(block);
  return open_number_;
}

CUresult Ordering::wait(EpochNumber epoch) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (closed_.empty() ? epoch < open_number_ : epoch < closed_.front().number) {
    return CUDA_SUCCESS;  // harvested already
  }
  Epoch* fenced = first_fenced_from_locked(epoch);
  if (fenced == nullptr && capturing_locked()) return CUDA_SUCCESS;
  if (fenced == nullptr && can_record_) {
    const CUresult closed = close_locked(true);
    if (cuda::is_capture_refusal(closed)) return CUDA_SUCCESS;
    if (closed == CUDA_ERROR_DEINITIALIZED || cuda::is_sticky(closed)) return closed;
    if (closed != CUDA_SUCCESS) {
      can_record_ = false;
      CUPOOL_WARN_ONCE(
          "cuCtxRecordEvent failed with error %d; frees synchronise the context instead (slower, "
          "still right)",
          static_cast<int>(closed));
    }
    fenced = first_fenced_from_locked(epoch);
  }
  if (fenced != nullptr) return wait_for_fence(fenced, lock);
  return wait_for_context(lock);
}

CUresult Ordering::wait_for_all() {
  EpochNumber newest = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    newest = open_number_;
    if (open_.empty() && closed_.empty()) return CUDA_SUCCESS;
  }
  return wait(newest);
}

void Ordering::poll(BlockList* quiet) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const cuda::RelaxedCaptureScope relaxed(driver_);
  EpochNumber complete = 0;
  for (Epoch& epoch : closed_) {
    if (epoch.fence == nullptr) continue;
    if (!epoch.seen_complete) {
      stats_.add(Counter::fence_queries_total, 1);
      if (driver_.cuEventQuery(epoch.fence) != CUDA_SUCCESS) break;
      epoch.seen_complete = true;
    }
    complete = epoch.number;
  }
  harvest_locked(complete);
  quiet->splice(quiet_);
}

BlockList Ordering::take_quiet() {
  const std::lock_guard<std::mutex> lock(mutex_);
  BlockList taken;
  taken.splice(quiet_);
  return taken;
}

EpochNumber Ordering::begin_synchronize() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!open_.empty()) close_locked(false);
  return open_number_ - 1;
}

void Ordering::end_synchronize(EpochNumber before) {
  const std::lock_guard<std::mutex> lock(mutex_);
  harvest_locked(before);
}

bool Ordering::captures(CUstream stream) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::find(captures_.begin(), captures_.end(), stream) != captures_.end();
}

void Ordering::abandon() {
  const std::lock_guard<std::mutex> lock(mutex_);
  open_ = BlockList{};
  quiet_ = BlockList{};
  ++open_number_;
  spare_events_.clear();
  captures_.clear();
  // An epoch that a thread still waits for keeps its place; the thread finds the blocks gone.
  for (Epoch& epoch : closed_) epoch.blocks = BlockList{};
  closed_.erase(std::remove_if(closed_.begin(), closed_.end(),
                               [](const Epoch& epoch) { return epoch.waiters == 0; }),
                closed_.end());
}

void Ordering::forget_capture_locked(CUstream stream) {
  captures_.erase(std::remove(captures_.begin(), captures_.end(), stream), captures_.end());
}

// Closes the open epoch, even an empty one if a fence is wanted: a fence also covers older epochs
// that were closed without one.
CUresult Ordering::close_locked(bool with_fence) {
  Epoch epoch;
  if (with_fence) {
    CUresult result = create_event(&epoch.fence);
    if (result == CUDA_SUCCESS) {
      result = driver_.cuCtxRecordEvent(context_, epoch.fence);
      if (result != CUDA_SUCCESS) spare_events_.push_back(epoch.fence);
    }
    if (result != CUDA_SUCCESS) return result;
    stats_.add(Counter::fences_total, 1);
  }
  epoch.number = open_number_++;
  epoch.blocks.splice(open_);
  closed_.push_back(std::move(epoch));
  return CUDA_SUCCESS;
}

CUresult Ordering::create_event(CUevent* event) {
  if (!spare_events_.empty()) {
    *event = spare_events_.back();
    spare_events_.pop_back();
    return CUDA_SUCCESS;
  }
  const cuda::ContextScope scope(driver_, context_);
  if (!scope.ok()) return CUDA_ERROR_INVALID_CONTEXT;
  return driver_.cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
}

Ordering::Epoch* Ordering::first_fenced_from_locked(EpochNumber epoch) {
  for (Epoch& closed : closed_) {
    if (closed.number >= epoch && closed.fence != nullptr) return &closed;
  }
  return nullptr;
}

// Everything up to `up_to` is quiet. Epochs stay in the queue while a thread waits on their fence.
void Ordering::harvest_locked(EpochNumber up_to) {
  for (Epoch& epoch : closed_) {
    if (epoch.number > up_to) break;
    for (Block* block = epoch.blocks.head; block != nullptr; block = block->next) {
      block->state.store(BlockState::quiet, std::memory_order_relaxed);
    }
    quiet_.splice(epoch.blocks);
  }
  while (!closed_.empty() && closed_.front().number <= up_to && closed_.front().waiters == 0) {
    if (closed_.front().fence != nullptr) spare_events_.push_back(closed_.front().fence);
    closed_.pop_front();
  }
}

CUresult Ordering::wait_for_fence(Epoch* fenced, std::unique_lock<std::mutex>& lock) {
  const EpochNumber number = fenced->number;
  const CUevent fence = fenced->fence;
  ++fenced->waiters;
  lock.unlock();
  CUresult result = CUDA_SUCCESS;
  {
    const cuda::RelaxedCaptureScope relaxed(driver_);
    stats_.add(Counter::fence_queries_total, 1);
    result = driver_.cuEventQuery(fence);
    if (result == CUDA_ERROR_NOT_READY) result = driver_.cuEventSynchronize(fence);
  }
  lock.lock();
  // The deque may have moved: find the epoch again; waiters kept it in the queue.
  for (Epoch& closed : closed_) {
    if (closed.number != number) continue;
    --closed.waiters;
    if (result == CUDA_SUCCESS) closed.seen_complete = true;
    break;
  }
  if (result == CUDA_SUCCESS) harvest_locked(number);
  return result;
}

// For drivers that cannot record an event for a context (before 12.5).
CUresult Ordering::wait_for_context(std::unique_lock<std::mutex>& lock) {
  if (!open_.empty()) close_locked(false);
  const EpochNumber before = open_number_ - 1;
  lock.unlock();
  CUresult result = CUDA_ERROR_INVALID_CONTEXT;
  {
    const cuda::RelaxedCaptureScope relaxed(driver_);
    const cuda::ContextScope scope(driver_, context_);
    if (scope.ok()) result = driver_.cuCtxSynchronize();
  }
  lock.lock();
  if (result == CUDA_SUCCESS) harvest_locked(before);
  return cuda::is_capture_refusal(result) ? CUDA_SUCCESS : result;
}

}  // namespace cupool::core
