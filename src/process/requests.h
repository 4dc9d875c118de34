// What the program asks of us by the C interface; meanings and errors stand in cupool/cupool.h.
#pragma once

#include <cstdint>

#include "cupool/cupool.h"

namespace cupool::process {

/// Thread-safe. Never throw.
int snapshot(int device, cupool_figures* figures) noexcept;
int dump(const char* path) noexcept;
int trim(int device, std::uint64_t* released_bytes) noexcept;

}  // namespace cupool::process
