// SPDX-License-Identifier: Apache-2.0
// When a free of page-locked memory looks at the GPU although nothing is pending as far as cupool
// has seen. All threads believe one thing, so a look of one is enough; they would queue for the
// driver's lock.
#pragma once

namespace cupool::engine {

/// Whether kLookEvery frees of this thread have gone by without a look of any thread. Each call is
/// one free, and a look if the result is true. Thread-safe.
bool look_is_due();

}  // namespace cupool::engine
