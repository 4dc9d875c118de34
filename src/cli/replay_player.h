// Plays a trace against the driver of this process and measures each call.
#pragma once

#include <string>

#include "cli/replay_trace.h"

namespace cupool::cli {

struct ReplayOptions {
  bool stream_ordered = false;  ///< cuMemAllocAsync on a stream of each thread, else cuMemAlloc
  bool touch = false;           ///< each block is written on the GPU, so that frees find it busy
};

/// Plays it on device 0, each thread of the trace by one of its own; a free waits for its
/// allocation. The figures as one JSON object. Throws std::runtime_error where the driver does not
/// work or runs out of memory.
std::string play(const ReplayTrace& trace, const ReplayOptions& options);

}  // namespace cupool::cli
