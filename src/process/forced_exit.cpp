// SPDX-License-Identifier: Apache-2.0
// See forced_exit.h. A timer for the calling thread: other threads neither take its signal, as by
// sigwait(), nor stop it, as by alarm(). All by system calls, since the process is about to end and
// the program may have functions of its own of such names.
#include "process/forced_exit.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>

namespace cupool::process {
namespace {

volatile int status_of_forced_exit = 0;
volatile bool has_own_timer = false;
int own_timer;  // its address tells that timer's signal from others

// An alarm of the program that was pending, or comes meanwhile, ends nothing.
void force_exit(int, siginfo_t* info, void*) {
  const bool is_own = info->si_code == SI_TIMER && info->si_value.sival_ptr == &own_timer;
  if (has_own_timer ? !is_own : info->si_code != SI_KERNEL) return;
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

// False: the kernel has no timer left.
bool start_timer(const timespec& after) {
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = SIGALRM;
  event.sigev_value.sival_ptr = &own_timer;
  event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
  int timer = 0;
  if (syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer) != 0) return false;
  itimerspec once{};
  once.it_value = after;
  return syscall(SYS_timer_settime, timer, 0, &once, nullptr) == 0;
}

}  // namespace

void force_exit_soon(int status) {
  constexpr timespec kAfter{2, 0};
  status_of_forced_exit = status;
  has_own_timer = true;
  const KernelAction action = {force_exit, kFlags, kRestorer, 0};
  syscall(SYS_rt_sigaction, SIGALRM, &action, nullptr, sizeof action.mask);
  if (!start_timer(kAfter)) {
    has_own_timer = false;
    itimerval interval = {};
    interval.it_value.tv_sec = kAfter.tv_sec;
    setitimer(ITIMER_REAL, &interval, nullptr);
  }
  const std::uint64_t alarm_only = std::uint64_t{1} << (SIGALRM - 1);
  syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, &alarm_only, nullptr, sizeof alarm_only);
}

}  // namespace cupool::process
