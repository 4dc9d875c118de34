// Threads of our own inside somebody else's program: they handle none of its signals, and nobody
// waits for them at its end.
#pragma once

namespace cupool::process {

/// Starts `run` on a detached thread called `name` (15 letters at most), with every signal blocked.
/// False if there can be no thread. In a forked child the thread is not there.
bool start_background(const char* name, void* (*run)(void*));

}  // namespace cupool::process
