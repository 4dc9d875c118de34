// SPDX-License-Identifier: Apache-2.0
// The event of the mark, and the waits for it.
#include "engine/reclaim/lane_mark.h"

#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "util/mutation.h"

namespace cupool::engine {

alignas(128) std::atomic<bool> LaneMark::awaited_{false};
std::atomic<bool> LaneMark::stale_{false};
std::atomic<CUstream> LaneMark::stream_{nullptr};
std::atomic<CUcontext> LaneMark::context_{nullptr};
std::atomic<CUevent> LaneMark::event_{nullptr};
alignas(128) UseCount LaneMark::users_;
std::atomic<std::uint64_t> LaneMark::begun_{0};
UseCount LaneMark::waiters_;

void LaneMark::begin(CUcontext context, CUstream stream) {
  context_.store(context, std::memory_order_relaxed);
  stream_.store(stream, std::memory_order_relaxed);
}

bool LaneMark::let_users_out() {
  if (users_.wait_until_none()) return true;
  stale_.store(true, std::memory_order_relaxed);
  return false;
}

bool LaneMark::record(const cuda::Driver& driver) {
  const auto try_to = [&] {
    const auto [context, stream] = place();
    const cuda::ContextScope scope(driver, context);
    if (!scope.ok()) return false;
    CUevent event = event_.load(std::memory_order_acquire);
    if (event == nullptr) {
      // Two threads may both create one; the second is given back.
      if (driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return false;
      CUevent other = nullptr;
      if (!event_.compare_exchange_strong(other, event, std::memory_order_release,
                                          std::memory_order_acquire)) {
        driver.cuEventDestroy_v2(event);
        event = other;
      }
    }
    return driver.cuEventRecord(event, stream) == CUDA_SUCCESS;
  };
  if (try_to() || try_to()) return true;  // a refusal may pass
  stale_.store(true, std::memory_order_relaxed);
  return false;
}

std::uint64_t LaneMark::recorded() {
  const std::uint64_t begun = number();
  return users_.any() ? 0 : begun;
}

// A wait for all work of the stream, in place of a mark that could not be recorded.
bool LaneMark::wait_for_stream(const cuda::Driver& driver) {
  const cuda::ContextScope scope(driver, context_.load(std::memory_order_relaxed));
  const CUstream stream = stream_.load();
  if (!scope.ok()) return false;
  return cuda::insist([&] {
           return stream == nullptr ? driver.cuCtxSynchronize()
                                    : driver.cuStreamSynchronize(stream);
         }) == CUDA_SUCCESS;
}

// On the device, so that the host does not wait. The stream may be one of another context. The
// lane's own stream may wait too, which changes nothing; its handle may mean another stream there.
// Asked again within the use: once forget() has waited for users, nobody begins with the event.
void LaneMark::order_behind(const cuda::Driver& driver, CUstream stream) {
  if (!is_awaited() || (CUPOOL_MUTATED("trusts-the-handle") && stream_.load() == stream)) return;
  const Use use;
  if (!awaited_.load(std::memory_order_seq_cst)) return;
  if (use.put_behind(driver, stream)) awaited_.store(false, std::memory_order_relaxed);
}

bool LaneMark::Use::put_behind(const cuda::Driver& driver, CUstream stream) const {
  const CUevent event = this->event();
  const cuda::RelaxedCaptureScope relaxed(driver);
  if (is_stale()) return wait_for_stream(driver);
  if (event == nullptr) return false;
  if (driver.cuEventQuery(event) == CUDA_SUCCESS) return true;
  if (driver.cuStreamWaitEvent(stream, event, 0) != CUDA_SUCCESS) {
    cuda::insist([&] { return driver.cuEventSynchronize(event); });
  }
  return false;
}

bool LaneMark::wait(const cuda::Driver& driver, Wait wait) {
  if (number() == 0 || CUPOOL_MUTATED("exports-without-a-wait")) return true;
  const cuda::RelaxedCaptureScope relaxed(driver);
  if (wait == Wait::not_at_all) {
    const Use use;
    const CUevent event = use.event();
    return event == nullptr || driver.cuEventQuery(event) != CUDA_ERROR_NOT_READY;
  }
  let_users_out();
  const UseCount::Use waits(waiters_);
  const CUevent event = event_.load(std::memory_order_seq_cst);
  if (is_stale()) {
    wait_for_stream(driver);
  } else if (event != nullptr) {
    cuda::insist([&] { return driver.cuEventSynchronize(event); });
  }
  return true;
}

// Those who were marking leave first: they still need the stream, and may make the event. Then
// those who came later, to wait.
void LaneMark::forget_stream() {
  const bool are_out = let_users_out();
  stream_.store(nullptr);
  if (are_out) let_users_out();
}

void LaneMark::forget() {
  const bool are_out = let_users_out();
  awaited_.store(false, std::memory_order_seq_cst);
  event_.store(nullptr);
  stream_.store(nullptr, std::memory_order_relaxed);
  if (are_out && let_users_out()) waiters_.wait_until_none();
  stale_.store(false, std::memory_order_relaxed);
}

void LaneMark::reset() {
  awaited_ = stale_ = false;
  stream_ = nullptr;
  context_ = nullptr;
  event_ = nullptr;
  users_.reset();
  waiters_.reset();
  begun_ = 0;
}

}  // namespace cupool::engine
