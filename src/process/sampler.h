// The time series (CUPOOL_STATS_INTERVAL): a thread of ours looks at the figures from time to time.
// It never touches what the program's threads are doing, and steps back where one destroys a
// context.
#pragma once

#include <chrono>

#include "core/allocator.h"
#include "stats/series.h"

namespace cupool::process {

/// From now on `sample` is called on a thread of its own every `interval`, until it returns false.
/// An interval that the thread slept through is left out. False if there can be no thread. To be
/// called once.
bool sample_every(std::chrono::milliseconds interval, bool (*sample)());

/// The figures of now; with `ask_driver` those of the driver too: its pools, and the free memory of
/// each device, unless a context is being destroyed. Throws only std::bad_alloc.
stats::Sample take_sample(core::Allocator& allocator, bool ask_driver);

}  // namespace cupool::process
