// SPDX-License-Identifier: Apache-2.0
// What this process tells `cupool top`.
#pragma once

#include "engine/serve/allocator.h"
#include "stats/live_figures.h"

namespace cupool::process {

/// The figures of this moment. Makes no driver call, and folds the threads' tallies: each thread's
/// lock is held for as long as its counts are added up. Throws only std::bad_alloc.
stats::LiveFigures live_figures(engine::Allocator& allocator);

}  // namespace cupool::process
