// Reports on demand: a signal of the user's choice makes the running process write a snapshot.
// The handler only posts a semaphore; a thread of ours does the rest, outside of whatever the
// signal interrupted.
#pragma once

namespace cupool::process {

/// From now on `write` is called on a thread of its own whenever this process gets the signal;
/// signals that come meanwhile are answered together by one more call. A signal that already has a
/// handler, or is ignored, is left alone with a warning; a handler that the program installs later
/// replaces this one. In a forked child the signal does nothing. To be called once.
void write_on_signal(int signal_number, void (*write)());

}  // namespace cupool::process
