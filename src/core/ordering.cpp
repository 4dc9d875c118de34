// Epochs and fences. Source for what an event of a context covers: CUDA Driver API,
// cuCtxRecordEvent, and docs/measurements.
#include "core/ordering.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "core/size_class.h"
#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mutation.h"

namespace cupool::core {

using stats::Counter;

Ordering::Ordering(const cuda::Driver& driver, CUcontext context, stats::DeviceStats& stats)
    : driver_(driver),
      context_(context),
      stats_(stats),
      can_record_(driver.cuCtxRecordEvent != nullptr) {}

EpochNumber Ordering::retire(BlockList& blocks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  pending_bytes_.fetch_add(blocks.bytes, std::memory_order_relaxed);
  if (CUPOOL_MUTATED("obvious-mapping")) {
    Epoch unfenced;
    unfenced.blocks.splice(blocks);
    closed_.push_front(unfenced);
    harvest_locked(0);
    return open_number_ - 1;
  }
  if (CUPOOL_MUTATED("fence-before-free") && !closed_.empty()) {
    closed_.back().blocks.splice(blocks);
    return closed_.back().number;
  }
  open_.splice(blocks);
  return open_number_;
}

CUresult Ordering::close_if_full(const Batch& batch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (open_.count < batch.blocks && open_.bytes < batch.bytes) return CUDA_SUCCESS;
  const CUresult result = record_locked();
  if (result != CUDA_SUCCESS || closed_.empty() || closed_.back().fence == nullptr) return result;
  // One look at once: what is still running now is a stall that these frees avoided.
  Epoch& epoch = closed_.back();
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const CUresult state = query_locked(epoch);
  if (state == CUDA_ERROR_NOT_READY) {
    stats_.add(Counter::frees_unwaited_busy_total, epoch.frees);
    return CUDA_SUCCESS;
  }
  return state;
}

CUresult Ordering::wait(EpochNumber epoch, bool* waited, std::uint64_t limit_ns) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (closed_.empty() ? epoch < open_number_ : epoch < closed_.front().number) {
    return CUDA_SUCCESS;  // harvested already
  }
  Epoch* fenced = first_fenced_from_locked(epoch);
  if (fenced == nullptr) {
    const CUresult result = record_locked();
    if (result != CUDA_SUCCESS) return result;
    fenced = first_fenced_from_locked(epoch);
  }
  if (fenced != nullptr) {
    const CUresult result = wait_for_fence(fenced, lock, waited, limit_ns);
    if (limit_ns != 0 || !cuda::is_refusal(result)) return result;
  }
  const bool broken_by_synchronising = can_record_ || capturing_locked() || beginning_ != 0;
  return wait_for_context(lock, waited, broken_by_synchronising);
}

CUresult Ordering::wait_for_all(bool* waited, std::uint64_t limit_ns) {
  EpochNumber newest = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    newest = open_number_;
    if (open_.empty() && closed_.empty()) return CUDA_SUCCESS;
  }
  return wait(newest, waited, limit_ns);
}

CUresult Ordering::wait_for_work() {
  EpochNumber open = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    open = open_number_;
  }
  return wait(open);
}

CUresult Ordering::wait_for_oldest(bool* waited) {
  EpochNumber oldest = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    oldest = closed_.empty() ? open_number_ : closed_.front().number;
  }
  return wait(oldest, waited);
}

CUresult Ordering::poll(bool close_open, BlockList* quiet) {
  const std::lock_guard<std::mutex> lock(mutex_);
  CUresult result = CUDA_SUCCESS;
  if (close_open && !open_.empty()) result = record_locked();
  const cuda::RelaxedCaptureScope relaxed(driver_);
  EpochNumber complete = 0;
  for (Epoch& epoch : closed_) {
    if (epoch.fence == nullptr) continue;
    const CUresult state = query_locked(epoch);
    if (state != CUDA_SUCCESS) {
      if (state != CUDA_ERROR_NOT_READY) result = state;
      break;
    }
    complete = epoch.number;
  }
  harvest_locked(complete);
  quiet->splice(quiet_);
  return result;
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
  if (CUPOOL_MUTATED("harvest-later-frees")) {
    close_locked(false);
    before = open_number_ - 1;
  }
  harvest_locked(before);
}

bool Ordering::captures(CUstream stream) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::find(captures_.begin(), captures_.end(), stream) != captures_.end();
}

bool Ordering::is_barrier(CUdeviceptr address) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return barrier_ == address && address != 0;
}

void Ordering::abandon() {
  const std::lock_guard<std::mutex> lock(mutex_);
  open_ = BlockList{};
  quiet_ = BlockList{};
  pending_bytes_.store(0, std::memory_order_relaxed);
  ++open_number_;
  spare_events_.clear();
  barrier_ = 0;
  captures_in_process_.fetch_sub(static_cast<unsigned>(captures_.size()),
                                 std::memory_order_acq_rel);
  captures_.clear();
  ++lives_;
  // An epoch that a thread still waits for keeps its place; the thread finds the blocks gone.
  for (Epoch& epoch : closed_) epoch.blocks = BlockList{};
  closed_.erase(std::remove_if(closed_.begin(), closed_.end(),
                               [](const Epoch& epoch) { return epoch.waiters == 0; }),
                closed_.end());
}

// A synchronisation of the context is refused, and breaks the capture, when the driver meets it
// while a stream captures. A thread that has found none may not have called the driver yet: the
// capture lets it. But not without end: what the GPU waits for may be the thread that begins the
// capture.
void Ordering::let_synchronisations_in(std::unique_lock<std::mutex>& lock) {
  constexpr auto kLongestWayIn = std::chrono::milliseconds(100);
  if (synchronising_ == 0 || CUPOOL_MUTATED("synchronises-into-capture")) return;
  ++beginning_;
  synchronised_.wait_for(lock, kLongestWayIn, [this] { return synchronising_ == 0; });
  --beginning_;
}

// Kept from before a capture begins, so that a full device does not take the barrier away.
void Ordering::keep_barrier_locked() {
  if (barrier_ != 0) return;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context_);
  if (scope.ok() && driver_.cuMemAlloc_v2(&barrier_, kAlignment) != CUDA_SUCCESS) barrier_ = 0;
}

void Ordering::forget_capture_locked(CUstream stream) {
  const auto found = std::find(captures_.begin(), captures_.end(), stream);
  if (found == captures_.end()) return;
  captures_.erase(found);
  captures_in_process_.fetch_sub(1, std::memory_order_acq_rel);
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
  epoch.frees = open_.count;
  epoch.blocks.splice(open_);
  closed_.push_back(epoch);
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
    pending_bytes_.fetch_sub(epoch.blocks.bytes, std::memory_order_relaxed);
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

// Closes the open epoch with a fence if that is possible now. Success without a fence: a stream is
// capturing, or events of the context are not to be had (can_record_ tells).
CUresult Ordering::record_locked() {
  const bool capturing = capturing_locked() && !CUPOOL_MUTATED("record-in-capture");
  if (!can_record_ || capturing) return CUDA_SUCCESS;
  const CUresult result = close_locked(true);
  if (result == CUDA_SUCCESS || cuda::is_capture_refusal(result)) return CUDA_SUCCESS;
  if (result == CUDA_ERROR_DEINITIALIZED || cuda::is_sticky(result)) return result;
  // A driver that shuts down meanwhile, in another thread's exit, may say something else first.
  CUcontext current = nullptr;
  const CUresult driver = driver_.cuCtxGetCurrent(&current);
  if (driver == CUDA_ERROR_DEINITIALIZED) return driver;
  // In a host function of the program nothing is answered; the next free elsewhere records.
  if (result == CUDA_ERROR_NOT_PERMITTED || driver == CUDA_ERROR_NOT_PERMITTED) return CUDA_SUCCESS;
  can_record_ = false;
  CUPOOL_WARN_ONCE(
      "cuCtxRecordEvent failed with error %d; frees synchronise the context instead (slower, still "
      "right)",
      static_cast<int>(result));
  return CUDA_SUCCESS;
}

CUresult Ordering::query_locked(Epoch& epoch) {
  if (epoch.seen_complete) return CUDA_SUCCESS;
  stats_.add(Counter::fence_queries_total, 1);
  CUresult state = driver_.cuEventQuery(epoch.fence);
  if (CUPOOL_MUTATED("reuse-before-complete") && state == CUDA_ERROR_NOT_READY) {
    state = CUDA_SUCCESS;
  }
  if (state == CUDA_SUCCESS) epoch.seen_complete = true;
  return state;
}

CUresult Ordering::wait_for_fence(Epoch* fenced, std::unique_lock<std::mutex>& lock, bool* waited,
                                  std::uint64_t limit_ns) {
  const EpochNumber number = fenced->number;
  const CUevent fence = fenced->fence;
  ++fenced->waiters;
  const bool keeps_lock = CUPOOL_MUTATED("waits-with-lock");
  if (!keeps_lock) lock.unlock();
  CUresult result = CUDA_SUCCESS;
  {
    const cuda::RelaxedCaptureScope relaxed(driver_);
    stats_.add(Counter::fence_queries_total, 1);
    result = driver_.cuEventQuery(fence);
    if (result == CUDA_ERROR_NOT_READY) {
      if (waited != nullptr) *waited = true;
      result = limit_ns == 0 ? wait_for_event(fence) : wait_at_most(fence, limit_ns);
    }
  }
  if (!keeps_lock) lock.lock();
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

// A run-ahead that is bounded waits often and shortly: asking sees the end some microseconds sooner
// than the driver's wait does (docs/measurements). A long wait is the driver's, which may sleep.
CUresult Ordering::wait_for_event(CUevent fence) const {
  constexpr std::uint64_t kAskNs = 200'000;
  const std::uint64_t start = util::now_ns();
  CUresult result = CUDA_ERROR_NOT_READY;
  while (result == CUDA_ERROR_NOT_READY && util::now_ns() < start + kAskNs) {
    result = driver_.cuEventQuery(fence);
  }
  return result == CUDA_ERROR_NOT_READY ? driver_.cuEventSynchronize(fence) : result;
}

CUresult Ordering::wait_at_most(CUevent fence, std::uint64_t limit_ns) const {
  const std::uint64_t deadline = util::now_ns() + limit_ns;
  CUresult result = CUDA_ERROR_NOT_READY;
  while (result == CUDA_ERROR_NOT_READY && util::now_ns() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    result = driver_.cuEventQuery(fence);
  }
  return result;
}

// Where no event of the context can be had. `with_free`: a stream is capturing, which a
// synchronisation of the context would break. The driver's own free then does as a barrier: in
// relaxed mode it waits for all work of the context, destroyed streams included, and harms no
// capture (measured: docs/measurements).
CUresult Ordering::wait_for_context(std::unique_lock<std::mutex>& lock, bool* waited,
                                    bool with_free) {
  if (waited != nullptr) *waited = true;
  if (!open_.empty()) close_locked(false);
  const EpochNumber before = open_number_ - 1;
  const std::uint64_t life = lives_;
  CUdeviceptr barrier = 0;
  if (with_free) {
    std::swap(barrier, barrier_);
  } else {
    ++synchronising_;
  }
  lock.unlock();
  if (!with_free && CUPOOL_MUTATED("synchronises-into-capture")) {
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  CUresult result = CUDA_ERROR_INVALID_CONTEXT;
  {
    const cuda::RelaxedCaptureScope relaxed(driver_);
    const cuda::ContextScope scope(driver_, context_);
    if (!scope.ok()) {
      result = CUDA_ERROR_INVALID_CONTEXT;
    } else if (!with_free || barrier != 0 ||
               driver_.cuMemAlloc_v2(&barrier, kAlignment) == CUDA_SUCCESS) {
      const auto wait = [&] {
        return with_free ? driver_.cuMemFree_v2(barrier) : driver_.cuCtxSynchronize();
      };
      result = wait();
      // Without it a free returns too early: once more.
      if (cuda::is_refusal(result) && !cuda::is_capture_refusal(result)) result = wait();
    } else {
      result = CUDA_ERROR_NOT_READY;  // nothing waited for, nothing quiet; a later call tries again
    }
  }
  lock.lock();
  if (with_free) {
    const bool untouched = result == CUDA_ERROR_INVALID_CONTEXT ||
                           result == CUDA_ERROR_NOT_PERMITTED || cuda::is_capture_refusal(result);
    if (untouched && life == lives_ && barrier_ == 0) barrier_ = barrier;
    keep_barrier_locked();
  } else if (--synchronising_ == 0) {
    synchronised_.notify_all();
  }
  if (result == CUDA_SUCCESS) harvest_locked(before);
  return cuda::is_capture_refusal(result) ? CUDA_ERROR_NOT_READY : result;
}

}  // namespace cupool::core
