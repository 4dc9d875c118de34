// SPDX-License-Identifier: Apache-2.0
// Which dependent launches are serialised.
#include "engine/reclaim/dependent_launches.h"

#include <optional>

#include "cuda/capture_state.h"
#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "cuda/stream_kind.h"
#include "engine/reclaim/lane.h"
#include "engine/reclaim/lane_mark.h"
#include "engine/reclaim/serving.h"
#include "util/mutation.h"

namespace cupool::engine {

std::atomic<std::uint64_t> DependentLaunch::newest_{0};

// Whether `stream` is the one that is marked. The handle of a default stream names another stream
// in each context, or thread; what uses those leaves the lane first.
bool DependentLaunch::is_of_lane(CUstream stream) {
  if (LaneMark::place().stream != stream) return false;
  return !cuda::is_default(stream) || Lane::is_open() || CUPOOL_MUTATED("trusts-a-default-handle");
}

// Whether a block may be used that was handed out since the last serialised launch into the lane:
// it was freed after a mark, or with one. A launch elsewhere says nothing of the lane's stream, and
// has just waited for the mark unless that is complete.
bool DependentLaunch::is_behind_all(CUstream stream) {
  const std::uint64_t number = LaneMark::number();
  if (number == 0) return true;
  if (!is_of_lane(stream)) return !LaneMark::is_awaited();
  return number <= newest_.load(std::memory_order_acquire);
}

// In a capture nothing is launched yet, and no block of cupool's is handed out. No launch is known
// that has too many attributes to copy; it waits on the host. Where the driver does not say whether
// the stream captures, a graph may lose an edge that permits an overlap, and no later launch relies
// on this one.
void DependentLaunch::serialise(const cuda::Driver& driver, CUstream stream, bool behind_free) {
  const bool all = all_.load(std::memory_order_relaxed);
  if (CUPOOL_MUTATED("overlaps-work-before-a-free")) behind_free = false;
  if (!all && !behind_free && is_behind_all(stream)) return;
  if (CUPOOL_MUTATED("launches-overlap")) return;
  if (Serving::any_capture()) {
    const std::optional<bool> captures = cuda::is_capturing(driver, stream);
    if (captures.value_or(false)) return;
    may_capture_ = !captures.has_value();
  }
  if (configuration_->attribute_count > kMostAttributes) {
    const cuda::RelaxedCaptureScope relaxed(driver);
    LaneMark::wait(driver);
    if (!all && !behind_free) return;
    const CUresult waited = cuda::insist([&] { return driver.cuStreamSynchronize(stream); });
    waited_ = waited == CUDA_SUCCESS && !may_capture_;
    return;
  }
  if (is_of_lane(stream) && !may_capture_) recorded_ = LaneMark::recorded();
  copy_ = *configuration_;
  copy_.attributes = attributes_.data();
  copy_.attribute_count = 0;
  for (unsigned i = 0; i < configuration_->attribute_count; ++i) {
    const cuda::LaunchAttribute& attribute = configuration_->attributes[i];
    if (attribute.id == cuda::kProgrammaticStreamSerialization) continue;
    attributes_[copy_.attribute_count++] = attribute;
  }
  serialised_ = true;
}

void DependentLaunch::note() const {
  std::uint64_t known = newest_.load(std::memory_order_relaxed);
  while (known < recorded_ &&
         !newest_.compare_exchange_weak(known, recorded_, std::memory_order_release,
                                        std::memory_order_relaxed)) {
  }
}

}  // namespace cupool::engine
