// SPDX-License-Identifier: Apache-2.0
// The time series (CUPOOL_STATS_INTERVAL): a background thread samples the figures. It does not
// disturb the program's threads, and yields to one that destroys a context.
#pragma once

#include <chrono>

#include "engine/serve/allocator.h"
#include "stats/series.h"

namespace cupool::process {

/// Calls `sample` on a background thread every `interval`, until it returns false. Missed intervals
/// are skipped. False if the thread cannot be created. To be called once.
bool sample_every(std::chrono::milliseconds interval, bool (*sample)());

/// The current figures. With `ask_driver` also the driver's: its pools, and the free memory of each
/// device, unless a context is being destroyed. Throws only std::bad_alloc.
stats::Sample take_sample(engine::Allocator& allocator, bool ask_driver);

}  // namespace cupool::process
