// SPDX-License-Identifier: Apache-2.0
// The event of the mark, and the waits for it.
#include "engine/reclaim/lane_mark.h"

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

void LaneMark::begin(CUcontext context, CUstream stream) {
  context_.store(context);
  stream_.store(stream);
}

void LaneMark::let_users_out() {
  if (!users_.wait_until_none()) stale_.store(true);
}

bool LaneMark::record(const cuda::Driver& driver) {
  const auto try_to = [&] {
    const cuda::ContextScope scope(driver, context_.load());
    if (!scope.ok()) return false;
    CUevent event = event_.load(std::memory_order_acquire);
    if (event == nullptr) {
      // Two threads may both create one; the second is given back.
      if (driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return false;
      CUevent other = nullptr;
      if (!event_.compare_exchange_strong(other, event, std::memory_order_acq_rel)) {
        driver.cuEventDestroy_v2(event);
        event = other;
      }
    }
    return driver.cuEventRecord(event, stream_.load()) == CUDA_SUCCESS;
  };
  if (try_to() || try_to()) return true;  // a refusal may pass
  stale_.store(true);
  return false;
}

std::uint64_t LaneMark::recorded() {
  const std::uint64_t begun = number();
  return users_.any() ? 0 : begun;
}

// A wait for all work of the stream, in place of a mark that could not be recorded.
bool LaneMark::wait_for_stream(const cuda::Driver& driver) {
  const cuda::ContextScope scope(driver, context_.load());
  const CUstream stream = stream_.load();
  if (!scope.ok()) return false;
  return (stream == nullptr ? driver.cuCtxSynchronize() : driver.cuStreamSynchronize(stream)) ==
         CUDA_SUCCESS;
}

// On the device, so that the host does not wait. The stream may be one of another context. The
// lane's own stream may wait too, which changes nothing; its handle may mean another stream there.
void LaneMark::order_behind(const cuda::Driver& driver, CUstream stream) {
  if (!is_awaited() || (CUPOOL_MUTATED("trusts-the-handle") && stream_.load() == stream)) return;
  const Use use;
  const CUevent event = event_.load(std::memory_order_acquire);
  const cuda::RelaxedCaptureScope relaxed(driver);
  if (stale_.load()) {
    if (wait_for_stream(driver)) awaited_.store(false, std::memory_order_release);
  } else if (event != nullptr) {
    if (driver.cuEventQuery(event) == CUDA_SUCCESS) {
      awaited_.store(false, std::memory_order_release);
    } else if (driver.cuStreamWaitEvent(stream, event, 0) != CUDA_SUCCESS) {
      driver.cuEventSynchronize(event);
    }
  }
}

bool LaneMark::wait(const cuda::Driver& driver, Wait wait) {
  if (number() == 0 || CUPOOL_MUTATED("exports-without-a-wait")) return true;
  const cuda::RelaxedCaptureScope relaxed(driver);
  if (wait == Wait::not_at_all) {
    const Use use;
    const CUevent event = event_.load(std::memory_order_acquire);
    return event == nullptr || driver.cuEventQuery(event) != CUDA_ERROR_NOT_READY;
  }
  let_users_out();
  const CUevent event = event_.load(std::memory_order_acquire);
  if (stale_.load()) {
    wait_for_stream(driver);
  } else if (event != nullptr) {
    driver.cuEventSynchronize(event);
  }
  return true;
}

void LaneMark::forget() {
  awaited_.store(false, std::memory_order_release);
  event_.store(nullptr);
  stream_.store(nullptr);
  let_users_out();
}

void LaneMark::reset() {
  awaited_ = stale_ = false;
  stream_ = nullptr;
  context_ = nullptr;
  event_ = nullptr;
  users_.reset();
  begun_ = 0;
}

}  // namespace cupool::engine
