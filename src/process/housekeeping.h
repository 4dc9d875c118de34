// SPDX-License-Identifier: Apache-2.0
// Work that background threads take off the program's calls: decay of idle memory
// (CUPOOL_DECAY_MS), reservation of CUPOOL_PREALLOC, and creation of pools.
#pragma once

#include "config/settings.h"
#include "engine/serve/allocator.h"

namespace cupool::process {

/// Starts the thread if the settings need it, and prepares the start of another one for the time
/// when the program needs pools. To be called once.
void start_housekeeping(engine::Allocator& allocator, const config::Settings& settings);

}  // namespace cupool::process
