// Ranges and marks for Nsight Systems and other NVTX tools (CUPOOL_NVTX), in a domain of our own.
#pragma once

#include <cstdint>

#include "trace/watch.h"

namespace cupool::trace {

/// Finds the tool that this process runs under, if any. To be called once.
void start_nvtx() noexcept;

/// A range of the calling thread with a number of bytes; each begin has its end on the same thread.
void nvtx_begin_malloc(std::uint64_t bytes) noexcept;
void nvtx_begin_free(std::uint64_t bytes) noexcept;
void nvtx_end() noexcept;

/// Marks the live bytes of a device after they have changed, at most once in 100 us.
void nvtx_changed(const Memory& memory, bool allocated) noexcept;

}  // namespace cupool::trace
