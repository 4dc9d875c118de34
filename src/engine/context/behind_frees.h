// SPDX-License-Identifier: Apache-2.0
// Calls that show on the host whether work before the thread's frees is complete. A free of
// cupool's does not wait for the GPU as the driver's does; the wait is here
// (engine/context/thread_order).
#pragma once

#include <time.h>

#include <cstdint>

#include "engine/context/thread_order.h"
#include "engine/reclaim/lane_wait.h"
#include "util/clock.h"
#include "util/uncancelled.h"

namespace cupool::engine {

/// Waits on the host until all work before these frees is complete, as the driver's own free would
/// have, or until `ends()`.
template <typename Ends>
void wait_for_frees(const cuda::Driver& real, const Ends& ends) {
  constexpr std::uint64_t kLongestNs = 10'000'000'000;
  constexpr timespec kMoment{0, 20'000};
  if (!ThreadOrder::is_on()) return;
  const util::Uncancelled throughout;
  const std::uint64_t begin = util::now_ns();
  LaneWait lane(real);
  for (;;) {
    const bool lane_complete = lane.is_complete();
    bool complete = ThreadOrder::is_complete(real, ThreadOrder::Of::own);
    // The lane's mark may be another thread's, behind work that waits for this one.
    if (!lane_complete && util::now_ns() - begin <= kLongestNs) complete = false;
    if (ends() || complete) return;
    nanosleep(&kMoment, nullptr);
  }
}

/// The same, to the end.
void wait_for_frees(const cuda::Driver& real);

/// What kernels may use, and the driver takes away without a wait: mapped memory, textures.
template <typename Call>
CUresult take_away(const cuda::Driver& real, const Call& call) {
  wait_for_frees(real);
  return call();
}

}  // namespace cupool::engine
