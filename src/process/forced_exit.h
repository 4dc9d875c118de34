// The end of a process that may not take longer than a moment, whatever locks are held in it.
#pragma once

namespace cupool::process {

/// From now on the process ends with `status` in two seconds, if it has not ended by then: no exit
/// handlers, no report. By a signal (SIGALRM) whose handler is given to the kernel itself, so that
/// nobody who wraps sigaction, a sanitizer for one, can put it off until a lock is free.
/// Async-signal-safe.
void force_exit_soon(int status);

}  // namespace cupool::process
