// SPDX-License-Identifier: Apache-2.0
// The program's requests by the C interface; cupool/cupool.h has meanings and errors.
#pragma once

#include <cstdint>

#include "cupool/cupool.h"

namespace cupool::process {

/// Thread-safe. Never throw.
int snapshot(int device, cupool_figures* figures) noexcept;
int dump(const char* path) noexcept;
int trim(int device, std::uint64_t* released_bytes) noexcept;

}  // namespace cupool::process
