// SPDX-License-Identifier: Apache-2.0
// What counts as a stall, one rule for observed runs and for cupool's own: work that was submitted
// before a free is still pending some time after it.
#pragma once

#include <cstdint>

namespace cupool::stats {

/// An idle GPU needs a moment to pass an event. What is pending for a shorter time is no stall.
inline constexpr std::uint64_t kShortestStallNs = 10'000;

}  // namespace cupool::stats
