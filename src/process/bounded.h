// SPDX-License-Identifier: Apache-2.0
// Work at the end of a process, bounded in time because locks may be held for ever.
#pragma once

namespace cupool::process {

/// Runs `work`, and abandons it after `milliseconds`: its locks stay held, and its destructors do
/// not run. False if it was abandoned or could not start. Uses a signal to the calling thread only,
/// and restores the process's handler. Uses no heap.
bool do_within(int milliseconds, void (*work)()) noexcept;

}  // namespace cupool::process
