// SPDX-License-Identifier: Apache-2.0
// Live memory of the kinds that the engine keeps no record of (page-locked, managed and
// stream-ordered memory), while a trace or the list of leaks wants it.
#pragma once

#include <cstdint>
#include <optional>

#include "trace/watch.h"

namespace cupool::trace {

/// Starts to keep a record of that memory. To be called once, before the other functions. Throws
/// only std::bad_alloc.
void start_other_kinds();

/// Whether calls for these kinds are to be noted. One load.
inline bool watching_other_kinds() noexcept {
  return watching(kOtherKinds);
}

/// As note_allocation(), which it calls. `context`: the memory ends with it; null: with none.
/// Thread-safe. Never throws: without host memory it is not noted.
void note_other_allocation(const Memory& memory, const void* context,
                           std::uint64_t start_ns) noexcept;

/// Memory of such a kind that is about to be freed.
struct OtherMemory {
  Memory memory;
  const void* context = nullptr;
};
/// As note_free(), which it calls, if such memory begins at `address`; else nothing happens.
/// Thread-safe. Never throws.
std::optional<OtherMemory> note_other_free(std::uint64_t address) noexcept;
/// As note_free_done(), which it calls. Thread-safe. Never throws.
void note_other_free_done(const OtherMemory& freed, std::uint64_t start_ns, bool refused) noexcept;

/// What ended with `context`. Thread-safe. Never throws.
void note_others_lost(const void* context) noexcept;

}  // namespace cupool::trace
