// SPDX-License-Identifier: Apache-2.0
// A timer of one thread, whose signal goes to no other and tells itself from the program's own of
// that number. By system calls: the C library's timer_create() uses the heap, whose lock may be
// held.
#pragma once

#include <signal.h>

namespace cupool::process {

/// Sends `signal` to the calling thread once, in `milliseconds`, with `mark`. False if the kernel
/// has no timer left.
bool start_thread_timer(int signal, const int& mark, int milliseconds, int* timer);
void end_thread_timer(int timer);

/// Whether that timer sent it. For signal handlers.
inline bool is_of_timer(const siginfo_t& info, const int& mark) {
  return info.si_code == SI_TIMER && info.si_value.sival_ptr == &mark;
}

}  // namespace cupool::process
