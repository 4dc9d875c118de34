// Where the program was when it called us: return addresses, and what they mean.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stats/snapshot.h"

namespace cupool::trace {

/// Return addresses, innermost first; unused places are 0.
struct CallStack {
  static constexpr std::size_t kMostFrames = 20;
  std::array<std::uintptr_t, kMostFrames> addresses{};

  bool operator==(const CallStack& other) const { return addresses == other.addresses; }
};

/// The stack of the caller. Unwinds by the tables that every program has, not by frame pointers.
/// About a microsecond for each few frames. Thread-safe; cannot fail, but may be cut short.
CallStack call_stack() noexcept;

/// At most 8 frames of the program: without those of cupool, libcudart and libcuda above them.
/// Throws only std::bad_alloc.
std::vector<stats::LeakFrame> frames_of(const CallStack& stack);

}  // namespace cupool::trace
