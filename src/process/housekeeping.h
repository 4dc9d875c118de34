// What cupool does on a thread of its own, so that no call of the program has to: idle memory goes
// back to the device (CUPOOL_DECAY_MS), CUPOOL_PREALLOC is reserved, and pools are made.
#pragma once

#include "config/settings.h"
#include "core/allocator.h"

namespace cupool::process {

/// Starts the thread if the settings ask for it, and has another one ready for the time when the
/// program needs pools. To be called once.
void start_housekeeping(core::Allocator& allocator, const config::Settings& settings);

}  // namespace cupool::process
