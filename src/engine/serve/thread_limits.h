// SPDX-License-Identifier: Apache-2.0
// Limits of one thread's cache and batch.
#pragma once

#include <cstddef>

#include "engine/context/context.h"

namespace cupool::engine {

/// Batches that a thread may have in flight before it needs the fences of other threads. Chosen
/// together with the bytes of a batch; not measured separately.
inline constexpr std::size_t kBatchesWaiting = 8;

/// Batches of each thread that may be pending, however low the limit in force is.
inline constexpr std::size_t kBatchesPending = 4;

/// The limits of one thread in `context`. The batches of all threads together stay below a quarter
/// of the highest pending limit. With a high one (the realtime profile), batches are so large that
/// fewer than one call in a thousand ends one.
ThreadCache::Limits limits_of_thread(Context& context);

}  // namespace cupool::engine
