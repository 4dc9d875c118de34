// SPDX-License-Identifier: Apache-2.0
// cupool's background threads: they handle none of the program's signals, and its exit does not
// wait for them.
#pragma once

namespace cupool::process {

/// Starts `run` on a detached thread with the name `name` (15 letters at most) and all signals
/// blocked. False if the thread cannot be created. It does not exist in a forked child.
bool start_background(const char* name, void* (*run)(void*));

}  // namespace cupool::process
