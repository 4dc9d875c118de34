// SPDX-License-Identifier: Apache-2.0
// Ranges and marks for Nsight Systems and other NVTX tools (CUPOOL_NVTX), in cupool's own domain.
#pragma once

#include <cstdint>

#include "trace/watch.h"

namespace cupool::trace {

/// Finds this process's NVTX tool, if any, at the first call. Thread-safe. To be called with no
/// lock: it loads a library, and the tool may allocate. Until then the other functions have no
/// effect.
void start_nvtx() noexcept;

/// A range of the calling thread with a number of bytes. False: it has not begun. Else it needs an
/// end on the same thread.
bool nvtx_begin_malloc(std::uint64_t bytes) noexcept;
bool nvtx_begin_free(std::uint64_t bytes) noexcept;
void nvtx_end() noexcept;

/// Marks the live bytes of a device after a change, at most once per 100 us.
void nvtx_changed(const Memory& memory, bool allocated) noexcept;

}  // namespace cupool::trace
