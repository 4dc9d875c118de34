// SPDX-License-Identifier: Apache-2.0
// The lines on which threads count their calls (engine/reclaim/calls_under_way and
// engine/reclaim/host_work_calls). Apart, so that the explorer of interleavings can do with one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cupool::engine {

inline constexpr std::size_t kCallLines = 16;
/// They are looked at beside a call only.
inline constexpr std::size_t kHostWorkLines = 64;

/// The line of the calling thread among `kLines`, its own mostly.
template <std::size_t kLines>
[[gnu::always_inline]] inline std::size_t line_of_thread() {
  const auto thread = reinterpret_cast<std::uintptr_t>(__builtin_thread_pointer());
  const std::uint64_t mixed = (thread >> 6) * std::uint64_t{0x9e3779b97f4a7c15};
  return (mixed >> 32) % kLines;
}

}  // namespace cupool::engine
