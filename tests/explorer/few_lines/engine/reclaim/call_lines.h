// SPDX-License-Identifier: Apache-2.0
// In place of the engine's own: threads on one line. Every line that is looked at is a step of each
// execution, and how threads are spread over them decides nothing.
#pragma once

#include <cstddef>

namespace cupool::engine {

inline constexpr std::size_t kCallLines = 1;
inline constexpr std::size_t kHostWorkLines = 1;

template <std::size_t kLines>
inline std::size_t line_of_thread() {
  return 0;
}

}  // namespace cupool::engine
