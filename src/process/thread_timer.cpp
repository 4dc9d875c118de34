// SPDX-License-Identifier: Apache-2.0
// See thread_timer.h.
#include "process/thread_timer.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace cupool::process {

bool start_thread_timer(int signal, const int& mark, int milliseconds, int* timer) {
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = signal;
  event.sigev_value.sival_ptr = const_cast<int*>(&mark);  // its address alone
  event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
  if (syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, timer) != 0) return false;
  itimerspec once{};
  once.it_value.tv_sec = milliseconds / 1000;
  once.it_value.tv_nsec = milliseconds % 1000 * 1'000'000L;
  if (syscall(SYS_timer_settime, *timer, 0, &once, nullptr) == 0) return true;
  end_thread_timer(*timer);
  return false;
}

void end_thread_timer(int timer) {
  syscall(SYS_timer_delete, timer);
}

}  // namespace cupool::process
