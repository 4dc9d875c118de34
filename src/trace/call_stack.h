// SPDX-License-Identifier: Apache-2.0
// The program's call stack: return addresses, and their modules and symbols.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stats/snapshot.h"

namespace cupool::trace {

/// Return addresses, innermost first; unused entries are 0.
struct CallStack {
  static constexpr std::size_t kMostFrames = 20;
  std::array<std::uintptr_t, kMostFrames> addresses{};

  bool operator==(const CallStack& other) const { return addresses == other.addresses; }
};

/// The stack of the caller. Unwinds by the unwind tables of the program, not by frame pointers.
/// About a microsecond for a few frames. Thread-safe; cannot fail, but may be truncated.
CallStack call_stack() noexcept;

/// The same into `addresses`, at most `most` of them; returns their number. `in_handler`: whether a
/// signal interrupted one of the functions, as far as it walks: `longest` frames. True if there are
/// more.
std::size_t walk_stack(std::uintptr_t* addresses, std::size_t most, std::size_t longest,
                       bool* in_handler) noexcept;

/// At most 8 frames of the program, without those of cupool, libcudart and libcuda above them; what
/// they are in goes to `modules`. Throws only std::bad_alloc.
std::vector<stats::LeakFrame> frames_of(const CallStack& stack,
                                        std::vector<stats::SiteModule>* modules);

}  // namespace cupool::trace
