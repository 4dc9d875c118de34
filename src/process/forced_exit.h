// SPDX-License-Identifier: Apache-2.0
// A bound on the end of a process, whatever locks are held in it.
#pragma once

namespace cupool::process {

/// Ends the process with `status` after two seconds, without exit handlers and report, unless it
/// has ended by then. Installs the handler of SIGALRM directly in the kernel: a wrapper of
/// sigaction, such as a sanitizer, could delay it until a lock is free. Async-signal-safe.
void force_exit_soon(int status);

}  // namespace cupool::process
