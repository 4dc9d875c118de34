// SPDX-License-Identifier: Apache-2.0
// Waits by the driver's own free. Sources: CUDA Driver API, stream capture; docs/measurements.
#include "engine/reclaim/barriers.h"

#include <algorithm>
#include <new>

#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "engine/block/size_class.h"
#include "engine/reclaim/serving.h"

namespace cupool::engine {
namespace {

constexpr std::size_t kHostBarrierBytes = 4096;  // measured

// False: without host memory there is one barrier less.
template <typename List>
bool has_place(List& list) {
  try {
    list.reserve(list.size() + 1);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace

// A capture begins only once whoever records under this lock has done so.
bool Barriers::record_behind(CUevent event) const {
  const OrderingGuard lock(mutex_);
  return !Serving::any_capture() && driver_.cuCtxRecordEvent(context_, event) == CUDA_SUCCESS;
}

bool Barriers::holds(CUdeviceptr address) const {
  const OrderingGuard lock(mutex_);
  if (address == 0) return false;
  return std::any_of(unlent_.begin(), unlent_.end(), [&](const Barrier& barrier) {
    return barrier.device == address || reinterpret_cast<CUdeviceptr>(barrier.host) == address;
  });
}

// Allocates a barrier in relaxed mode, with the context current. Returns none if there is no
// memory.
Barriers::Barrier Barriers::make() const {
  Barrier made;
  if (driver_.cuMemAlloc_v2(&made.device, kAlignment) == CUDA_SUCCESS) return made;
  made.device = 0;
  if (driver_.cuMemAllocHost_v2 == nullptr || driver_.cuMemFreeHost == nullptr) return made;
  if (driver_.cuMemAllocHost_v2(&made.host, kHostBarrierBytes) != CUDA_SUCCESS) made.host = nullptr;
  return made;
}

// Without this wait the program's free would return too early: one more attempt after a refusal.
CUresult Barriers::release(const Barrier& barrier) const {
  const auto free = [&] {
    return barrier.host != nullptr ? driver_.cuMemFreeHost(barrier.host)
                                   : driver_.cuMemFree_v2(barrier.device);
  };
  const CUresult answer = free();
  return cuda::is_passing_refusal(answer) ? free() : answer;
}

void Barriers::ensure_spare() {
  if (!unlent_.empty() || !has_place(unlent_)) return;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context_);
  const Barrier made = scope.ok() ? make() : Barrier{};
  if (!made.none()) unlent_.push_back(made);
}

void Barriers::abandon() {
  unlent_.clear();
  ++lives_;
}

// Closes the open epoch, so that the barrier covers all blocks retired so far, and releases the
// lock. The loan has no barrier if there is no memory.
Barriers::Loan Barriers::lend(OrderingLock& lock) {
  Loan loan;
  loan.before = epochs_.close_unfenced();
  loan.life = lives_;
  if (!unlent_.empty()) {
    loan.barrier = unlent_.back();
    unlent_.pop_back();
  }
  lock.unlock();
  if (!loan.barrier.none()) return loan;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context_);
  if (scope.ok()) loan.barrier = make();
  return loan;
}

void Barriers::take_back(const Loan& loan, Fate fate) {
  const OrderingGuard lock(mutex_);
  const bool same_life = loan.life == lives_;
  const bool is_kept = fate == Fate::kept && same_life && !loan.barrier.none();
  if (is_kept && has_place(unlent_)) unlent_.push_back(loan.barrier);
  ensure_spare();
  if (fate == Fate::waited) epochs_.reclaim_up_to(loan.before);
}

// After a free of the barrier by the driver, or of null.
Barriers::Fate Barriers::fate_after(CUresult answer) {
  if (answer == CUDA_SUCCESS) return Fate::waited;
  const bool refused = answer == CUDA_ERROR_NOT_PERMITTED || cuda::is_capture_refusal(answer);
  return refused ? Fate::kept : Fate::gone;
}

WaitResult Barriers::free_spare() {
  OrderingLock lock(mutex_);
  const Loan loan = lend(lock);
  // Without device memory, the driver is asked by a free of null, which it refuses in the same
  // cases.
  const CUdeviceptr spare = loan.barrier.device;
  CUresult answer = driver_.cuMemFree_v2(spare);
  if (cuda::is_passing_refusal(answer)) answer = driver_.cuMemFree_v2(spare);
  if (answer == CUDA_SUCCESS && loan.barrier.none()) {
    take_back(loan, Fate::gone);
    return WaitResult::not_possible();
  }
  if (answer == CUDA_SUCCESS && spare == 0) {
    const cuda::RelaxedCaptureScope relaxed(driver_);
    answer = release(loan.barrier);
  }
  take_back(loan, fate_after(answer));
  return WaitResult::answered(answer);
}

CUresult Barriers::free_spare_in_stream(CUresult (*free)(CUdeviceptr, CUstream), CUstream stream) {
  OrderingLock lock(mutex_);
  const Loan loan = lend(lock);
  const CUresult result = free(loan.barrier.device, stream);
  const bool kept = result != CUDA_SUCCESS || loan.barrier.device == 0;
  take_back(loan, kept ? Fate::kept : Fate::gone);
  return result;
}

// The driver's own free of device memory or of page-locked host memory. In relaxed mode it waits
// for all work of the context, destroyed streams included, and harms no capture (measured:
// docs/measurements).
WaitResult Barriers::wait(OrderingLock& lock) {
  const Loan loan = lend(lock);
  if (loan.barrier.none()) {
    take_back(loan, Fate::gone);
    return WaitResult::not_possible();
  }
  CUresult answer = CUDA_SUCCESS;
  bool asked = false;
  {
    const cuda::RelaxedCaptureScope relaxed(driver_);
    const cuda::ContextScope scope(driver_, context_);
    asked = scope.ok();
    answer = asked ? release(loan.barrier) : scope.result_of_context();
  }
  take_back(loan, asked ? fate_after(answer) : Fate::kept);
  return WaitResult::answered_for_context(answer);
}

}  // namespace cupool::engine
