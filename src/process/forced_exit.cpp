// SPDX-License-Identifier: Apache-2.0
// See forced_exit.h.
#include "process/forced_exit.h"

#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>

namespace cupool::process {
namespace {

volatile int status_of_forced_exit = 0;

void force_exit(int) {
  for (;;) syscall(SYS_exit_group, status_of_forced_exit);
}

// The kernel's struct sigaction (uapi asm/signal.h), the same on x86-64 and aarch64.
struct KernelAction {
  void (*handler)(int);
  unsigned long flags;
  void (*restorer)();
  std::uint64_t mask;
};

// On x86-64 the C library supplies the return code of a handler. This handler does not return.
void never_returned_to() {
  __builtin_trap();
}

}  // namespace

void force_exit_soon(int status) {
  constexpr unsigned long kRestorer = 0x04000000;  // SA_RESTORER
  status_of_forced_exit = status;
  const KernelAction action = {force_exit, kRestorer, never_returned_to, 0};
  syscall(SYS_rt_sigaction, SIGALRM, &action, nullptr, sizeof action.mask);
  const std::uint64_t alarm_only = std::uint64_t{1} << (SIGALRM - 1);
  syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, &alarm_only, nullptr, sizeof alarm_only);
  itimerval two_seconds = {};
  two_seconds.it_value.tv_sec = 2;
  setitimer(ITIMER_REAL, &two_seconds, nullptr);
}

}  // namespace cupool::process
