// SPDX-License-Identifier: Apache-2.0
// See forced_exit.h. A timer for the calling thread: other threads neither take its signal, as by
// sigwait(), nor stop it, as by alarm(). All by system calls, since the process is about to end and
// the program may have functions of its own of such names.
#include "process/forced_exit.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdint>

#include "process/thread_timer.h"

namespace cupool::process {
namespace {

volatile int status_of_forced_exit = 0;
volatile bool has_own_timer = false;
const int own_timer = 0;  // the mark of its signal

// An alarm of the program that was pending, or comes meanwhile, ends nothing.
void force_exit(int, siginfo_t* info, void*) {
  if (has_own_timer ? !is_of_timer(*info, own_timer) : info->si_code != SI_KERNEL) return;
  for (;;) syscall(SYS_exit_group, status_of_forced_exit);
}

// The kernel's struct sigaction (uapi asm/signal.h), the same on x86-64 and aarch64.
struct KernelAction {
  void (*handler)(int, siginfo_t*, void*);
  unsigned long flags;
  void (*restorer)();
  std::uint64_t mask;
};

#ifdef __x86_64__
// Behind a handler: on x86-64 the kernel leaves that to the C library.
extern "C" void cupool_return_from_handler();
asm(".pushsection .text\n"
    ".hidden cupool_return_from_handler\n"
    ".type cupool_return_from_handler, @function\n"
    "cupool_return_from_handler:\n"
    "  mov $15, %eax\n"  // rt_sigreturn
    "  syscall\n"
    ".size cupool_return_from_handler, . - cupool_return_from_handler\n"
    ".popsection\n");
constexpr unsigned long kFlags = SA_SIGINFO | 0x04000000;  // SA_RESTORER
constexpr void (*kRestorer)() = cupool_return_from_handler;
#else
constexpr unsigned long kFlags = SA_SIGINFO;
constexpr void (*kRestorer)() = nullptr;
#endif

}  // namespace

void force_exit_soon(int status) {
  constexpr int kSeconds = 2;
  status_of_forced_exit = status;
  has_own_timer = true;
  const KernelAction action = {force_exit, kFlags, kRestorer, 0};
  syscall(SYS_rt_sigaction, SIGALRM, &action, nullptr, sizeof action.mask);
  int timer = 0;
  if (!start_thread_timer(SIGALRM, own_timer, kSeconds * 1000, &timer)) {
    has_own_timer = false;
    itimerval interval = {};
    interval.it_value.tv_sec = kSeconds;
    setitimer(ITIMER_REAL, &interval, nullptr);
  }
  const std::uint64_t alarm_only = std::uint64_t{1} << (SIGALRM - 1);
  syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, &alarm_only, nullptr, sizeof alarm_only);
}

}  // namespace cupool::process
