// SPDX-License-Identifier: Apache-2.0
// A semaphore, not an eventfd: programs close descriptors that they do not know. With a reused
// number the handler would write into a file of the program.
#include "process/signal_report.h"

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "process/background.h"
#include "util/log.h"

namespace cupool::process {
namespace {

sem_t wanted;
pid_t process_of_thread = 0;
void (*write_snapshot)() = nullptr;

// A forked child has the handler but not the thread, and is not the process that the user meant.
void ask(int) {
  const int saved_errno = errno;
  if (getpid() == process_of_thread) sem_post(&wanted);
  errno = saved_errno;
}

void* serve(void*) {
  for (;;) {
    if (sem_wait(&wanted) != 0) continue;
    while (sem_trywait(&wanted) == 0) {
    }
    write_snapshot();
  }
}

}  // namespace

void write_on_signal(int signal_number, void (*write)()) {
  struct sigaction present = {};
  if (sigaction(signal_number, nullptr, &present) != 0) return;
  if ((present.sa_flags & SA_SIGINFO) != 0 || present.sa_handler != SIG_DFL) {
    CUPOOL_WARN_ONCE(
        "CUPOOL_STATS_SIGNAL: the program itself handles or ignores signal %d (%s), so the signal "
        "writes no snapshot; choose another one",
        signal_number, strsignal(signal_number));
    return;
  }
  process_of_thread = getpid();
  write_snapshot = write;
  if (sem_init(&wanted, 0, 0) != 0 || !start_background("cupool-report", serve)) {
    CUPOOL_WARN_ONCE(
        "CUPOOL_STATS_SIGNAL: cannot start its thread, so the signal keeps its usual effect. Check "
        "the limit of threads (ulimit -u)");
    return;
  }
  struct sigaction action = {};
  action.sa_handler = ask;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  sigfillset(&action.sa_mask);
  sigaction(signal_number, &action, nullptr);
}

}  // namespace cupool::process
