// SPDX-License-Identifier: Apache-2.0
// Detects an exit in a signal handler. The interrupted code may hold locks that are never released:
// cupool's, the driver's, the heap's, the C library's.
#pragma once

namespace cupool::process {

enum class Interrupted {
  nothing,  ///< the thread is in no signal handler
  other,    ///< any lock may be held
  heap,     ///< malloc() or similar: the heap's lock is held
};

/// The code interrupted by the calling thread's signal handlers, from its call stack: nothing has
/// to be recorded while the program runs. Takes no lock of cupool's and uses no heap.
Interrupted interrupted() noexcept;

/// Whether the calling thread is on a signal stack (sigaltstack) with less room than a report
/// takes.
bool has_little_stack() noexcept;

/// To be called once before, where the heap can be used: the unwinder of some compilers looks up a
/// function of glibc 2.35 by name the first time, and a failed look-up takes memory of the heap.
void prepare_unwinder() noexcept;

}  // namespace cupool::process
