// SPDX-License-Identifier: Apache-2.0
// Reports on demand: a signal of the user's choice makes the running process write a snapshot. The
// handler only posts a semaphore; a background thread does the rest, outside of the interrupted
// code.
#pragma once

namespace cupool::process {

/// Calls `write` on a background thread whenever this process gets the signal; signals during a
/// call are answered together by one more call. A signal that already has a handler or is ignored
/// is left alone, with a warning. A handler that the program installs later replaces this one. In a
/// forked child the signal has no effect. To be called once.
void write_on_signal(int signal_number, void (*write)());

}  // namespace cupool::process
