// SPDX-License-Identifier: Apache-2.0
// On how many lines threads count their calls (engine/reclaim/calls_under_way). Apart, so that the
// explorer of interleavings can do with one.
#pragma once

#include <cstddef>

namespace cupool::engine {

inline constexpr std::size_t kCallLines = 16;

}  // namespace cupool::engine
