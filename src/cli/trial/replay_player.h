// SPDX-License-Identifier: Apache-2.0
// Plays a trace on this process's driver and measures each call.
#pragma once

#include <string>

#include "cli/trial/replay_trace.h"

namespace cupool::cli {

struct ReplayOptions {
  bool stream_ordered = false;  ///< cuMemAllocAsync on a stream of each thread, else cuMemAlloc
  bool touch = false;           ///< write each block on the GPU, so that frees find it busy
};

/// Plays the trace on device 0 with one thread per thread of the trace; a free waits for its
/// allocation. Returns the figures as a JSON object. Throws std::runtime_error if the driver does
/// not start or lacks a function.
std::string play(const ReplayTrace& trace, const ReplayOptions& options);

}  // namespace cupool::cli
