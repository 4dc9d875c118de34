// How an ordering waits: for a fence, or for the whole context where no event of it can be had, and
// what that means for streams that capture. Sources: CUDA Driver API, stream capture, and
// docs/measurements.
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "core/ordering.h"
#include "core/size_class.h"
#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "util/clock.h"
#include "util/mutation.h"

namespace cupool::core {

using stats::Counter;

namespace {

constexpr std::size_t kHostBarrierBytes = 4096;  // as measured

}  // namespace

bool Ordering::captures(CUstream stream) const {
  const std::lock_guard<SharedMutex> lock(mutex_);
  return std::find(captures_.begin(), captures_.end(), stream) != captures_.end();
}

bool Ordering::is_barrier(CUdeviceptr address) const {
  const std::lock_guard<SharedMutex> lock(mutex_);
  if (address == 0) return false;
  return barrier_.device == address || reinterpret_cast<CUdeviceptr>(barrier_.host) == address;
}

// A synchronisation of the context is refused, and breaks the capture, when the driver meets it
// while a stream captures. A thread that has found none may not have called the driver yet: the
// capture lets it. But not without end: what the GPU waits for may be the thread that begins the
// capture.
void Ordering::let_synchronisations_in(std::unique_lock<SharedMutex>& lock) {
  constexpr auto kLongestWayIn = std::chrono::milliseconds(100);
  if (synchronising_ == 0 || CUPOOL_MUTATED("synchronises-into-capture")) return;
  ++beginning_;
  synchronised_.wait_for(lock, kLongestWayIn, [this] { return synchronising_ == 0; });
  --beginning_;
}

// In relaxed mode, with the context current. None: there is no memory.
Ordering::Barrier Ordering::make_barrier() const {
  Barrier made;
  if (driver_.cuMemAlloc_v2(&made.device, kAlignment) == CUDA_SUCCESS) return made;
  made.device = 0;
  if (driver_.cuMemAllocHost_v2 == nullptr || driver_.cuMemFreeHost == nullptr) return made;
  if (driver_.cuMemAllocHost_v2(&made.host, kHostBarrierBytes) != CUDA_SUCCESS) made.host = nullptr;
  return made;
}

CUresult Ordering::release(const Barrier& barrier) const {
  return barrier.host != nullptr ? driver_.cuMemFreeHost(barrier.host)
                                 : driver_.cuMemFree_v2(barrier.device);
}

// Kept from before a capture begins: what fills the device or the host meanwhile does not take the
// barrier away.
void Ordering::keep_barrier_locked() {
  if (!barrier_.none()) return;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context_);
  if (scope.ok()) barrier_ = make_barrier();
}

void Ordering::forget_capture_locked(CUstream stream) {
  const auto found = std::find(captures_.begin(), captures_.end(), stream);
  if (found == captures_.end()) return;
  captures_.erase(found);
  captures_in_process_.fetch_sub(1, std::memory_order_acq_rel);
}

CUresult Ordering::wait_for_fence(Epoch* fenced, std::unique_lock<SharedMutex>& lock, bool* waited,
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
// synchronisation of the context would break. The driver's own free then does as a barrier, of
// device memory or of page-locked host memory: in relaxed mode it waits for all work of the
// context, destroyed streams included, and harms no capture (measured: docs/measurements).
CUresult Ordering::wait_for_context(std::unique_lock<SharedMutex>& lock, bool* waited,
                                    bool with_free) {
  if (waited != nullptr) *waited = true;
  close_locked(false, kAnything);
  const EpochNumber before = open_.number() - 1;
  const std::uint64_t life = lives_;
  Barrier barrier;
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
    if (with_free && barrier.none() && scope.ok()) barrier = make_barrier();
    if (!scope.ok()) {
      result = CUDA_ERROR_INVALID_CONTEXT;
    } else if (with_free && barrier.none()) {
      result = CUDA_ERROR_NOT_READY;  // nothing waited for, nothing quiet; a later call tries again
    } else {
      const auto wait = [&] { return with_free ? release(barrier) : driver_.cuCtxSynchronize(); };
      result = wait();
      // Without it a free returns too early: once more.
      if (cuda::is_refusal(result) && !cuda::is_capture_refusal(result)) result = wait();
    }
  }
  lock.lock();
  if (with_free) {
    const bool untouched = result == CUDA_ERROR_INVALID_CONTEXT ||
                           result == CUDA_ERROR_NOT_PERMITTED || cuda::is_capture_refusal(result);
    if (untouched && life == lives_ && barrier_.none()) barrier_ = barrier;
    keep_barrier_locked();
  } else if (--synchronising_ == 0) {
    synchronised_.notify_all();
  }
  if (result == CUDA_SUCCESS) harvest_locked(before);
  return cuda::is_capture_refusal(result) ? CUDA_ERROR_NOT_READY : result;
}

}  // namespace cupool::core
