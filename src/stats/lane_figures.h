// SPDX-License-Identifier: Apache-2.0
// What a report says of the one lane of the process (docs/design.md, Lanes). Plain data, taken at
// one moment.
#pragma once

#include <cstdint>

namespace cupool::stats {

/// All texts are literals, or null.
struct LaneFigures {
  std::uint64_t inside_ns = 0;      ///< time in the lane, without the time away
  std::uint64_t away = 0;           ///< how often work of other streams led away
  const char* last_call = nullptr;  ///< the call that did so last
  const char* end = nullptr;        ///< what left it for good; null: nothing so far
  const char* end_call = nullptr;   ///< by which call, if known
};

}  // namespace cupool::stats
