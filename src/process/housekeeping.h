// What cupool does on a thread of its own, so that no call of the program has to: idle memory goes
// back to the device (CUPOOL_DECAY_MS), and CUPOOL_PREALLOC is reserved.
#pragma once

#include "config/settings.h"
#include "core/allocator.h"

namespace cupool::process {

/// Starts the thread if the settings ask for it. To be called once.
void start_housekeeping(core::Allocator& allocator, const config::Settings& settings);

}  // namespace cupool::process
