// SPDX-License-Identifier: Apache-2.0
// Work with a limit, by a timer of its thread, and a lock with a limit.
#include "process/bounded.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "process/thread_timer.h"

namespace cupool::process {
namespace {

constexpr int kSignal = SIGVTALRM;

// Not by polling: others that take the lock again and again would always be first. Of the waits
// with a limit this one is in every C library.
bool take_within(std::mutex& mutex, std::chrono::milliseconds limit) {
  if (mutex.try_lock()) return true;
  if (limit.count() == 0) return false;
  timespec until{};
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += static_cast<time_t>(limit.count() / 1000);
  until.tv_nsec += static_cast<long>(limit.count() % 1000 * 1'000'000);
  until.tv_sec += until.tv_nsec / 1'000'000'000;
  until.tv_nsec %= 1'000'000'000;
  return pthread_mutex_timedlock(mutex.native_handle(), &until) == 0;
}

sigjmp_buf before_work;
std::atomic<pid_t> working{0};  // the thread; 0: none
const int own_timer = 0;        // the mark of its signal

pid_t this_thread() {
  return static_cast<pid_t>(syscall(SYS_gettid));
}

// Other threads, and timers of the program, may have the same signal.
void leave_work(int, siginfo_t* info, void*) {
  if (!is_of_timer(*info, own_timer)) return;
  if (working.load(std::memory_order_relaxed) == this_thread()) siglongjmp(before_work, 1);
}

// Isolates sigsetjmp(): the jump affects no local variable of the caller.
[[gnu::noinline]] bool work_until_left(void (*work)()) {
  if (sigsetjmp(before_work, 1) != 0) return false;
  working.store(this_thread(), std::memory_order_relaxed);
  work();
  return true;
}

}  // namespace

bool do_within(int milliseconds, void (*work)()) noexcept {
  struct sigaction action {};
  struct sigaction old_action {};
  action.sa_sigaction = leave_work;
  action.sa_flags = SA_SIGINFO;
  if (sigaction(kSignal, &action, &old_action) != 0) return false;
  sigset_t only;
  sigset_t old_mask;
  sigemptyset(&only);
  sigaddset(&only, kSignal);
  pthread_sigmask(SIG_UNBLOCK, &only, &old_mask);
  int timer = 0;
  bool done = false;
  if (start_thread_timer(kSignal, own_timer, milliseconds, &timer)) {
    done = work_until_left(work);
    working.store(0, std::memory_order_relaxed);
    end_thread_timer(timer);
  }
  pthread_sigmask(SIG_SETMASK, &old_mask, nullptr);
  sigaction(kSignal, &old_action, nullptr);
  return done;
}

BoundedLock::BoundedLock(std::mutex& mutex, std::chrono::milliseconds limit)
    : mutex_(mutex), taken_(take_within(mutex, limit)) {}

}  // namespace cupool::process
