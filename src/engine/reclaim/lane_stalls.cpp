// SPDX-License-Identifier: Apache-2.0
// The event that tells how far the GPU is behind the frees of the lane.
#include "engine/reclaim/lane_stalls.h"

#include <algorithm>

#include "cuda/scopes.h"
#include "stats/stall.h"

namespace cupool::engine {

namespace {

// A query takes 0.1 us. Where the GPU is behind, the host has that time. Where it is not, each look
// also records an event.
constexpr std::uint64_t kWhileBehindNs = 20'000;
constexpr std::uint64_t kWhileIdleNs = 100'000;

}  // namespace

bool LaneStalls::watch(const cuda::Driver& driver, CUcontext context, CUstream stream) {
  const cuda::ContextScope scope(driver, context);
  if (!scope.ok()) return false;
  if (event_ == nullptr && driver.cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
    event_ = nullptr;
    return false;
  }
  return driver.cuEventRecord(event_, stream) == CUDA_SUCCESS;
}

void LaneStalls::look(const cuda::Driver& driver, stats::DeviceStats& stats) {
  if (!watched_) return;
  watched_ = driver.cuEventQuery(event_) == CUDA_ERROR_NOT_READY;
  if (!watched_) return;
  const std::uint64_t counted = std::max(counted_, covered_);
  if (old_enough_ <= counted) return;
  stats.add(stats::Counter::frees_unwaited_busy_total, old_enough_ - counted);
  counted_ = old_enough_;
}

void LaneStalls::freed(const cuda::Driver& driver, CUcontext context, CUstream stream,
                       stats::DeviceStats& stats, std::uint64_t now_ns) {
  const std::uint64_t number = frees_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (busy_.exchange(true, std::memory_order_acquire)) return;
  if (now_ns - recent_ns_ >= stats::kShortestStallNs) {
    old_enough_ = recent_;
    recent_ = number;
    recent_ns_ = now_ns;
  }
  if (now_ns >= next_look_ns_) {
    look(driver, stats);
    const bool behind = watched_;
    if (!watched_) {
      watched_ = watch(driver, context, stream);
      // Frees of other threads that came meanwhile may lie before work that the event covers.
      const std::uint64_t newest = frees_.load(std::memory_order_relaxed);
      covered_ = newest == number ? number - 1 : newest;
    }
    next_look_ns_ = now_ns + (behind ? kWhileBehindNs : kWhileIdleNs);
  }
  busy_.store(false, std::memory_order_release);
}

void LaneStalls::reset() {
  event_ = nullptr;
  watched_ = false;
  next_look_ns_ = 0;
  busy_ = false;
}

}  // namespace cupool::engine
