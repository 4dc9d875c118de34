// SPDX-License-Identifier: Apache-2.0
// Locks shared by all threads of a context. They count how often a thread takes one: the fast path
// must take none (I5), which tests and benchmarks check.
#pragma once

#include <sched.h>
#include <time.h>

#include <atomic>
#include <cstdint>

#include "util/lock_order.h"
#include "util/uncancelled.h"

namespace cupool::engine {

/// Tells the processor that this thread polls a value that another thread will write.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/// For short critical sections without calls. If the holder is off its processor, a waiter yields
/// and then sleeps: a thread of real-time priority would otherwise keep a holder of lower priority
/// off the processor forever.
class SpinLock {
 public:
  void lock() {
    static const std::atomic<bool> never{false};
    lock_unless(never);
  }
  /// Locks unless `stop` becomes true first. False: not locked, and nothing is ordered.
  bool lock_unless(const std::atomic<bool>& stop) { return try_lock() || wait(stop); }
  bool try_lock() { return !locked_.exchange(true, std::memory_order_acquire); }
  void unlock() { locked_.store(false, std::memory_order_release); }

 private:
  bool wait(const std::atomic<bool>& stop) {
    constexpr unsigned kLooks = 64;  // between two system calls
    constexpr unsigned kYields = 16;
    for (unsigned looks = 1;; ++looks) {
      if (!locked_.load(std::memory_order_relaxed) && try_lock()) return true;
      if (stop.load(std::memory_order_relaxed)) return false;
      relax();
      if (looks % kLooks != 0) continue;
      if (looks <= kLooks * kYields) {
        sched_yield();
      } else {
        constexpr timespec kMoment{0, 50'000};
        const util::Uncancelled meanwhile;
        nanosleep(&kMoment, nullptr);
      }
    }
  }

  std::atomic<bool> locked_{false};
};

/// Number of shared locks that the calling thread has taken or tried to take.
inline thread_local std::uint64_t shared_locks_taken = 0;

/// A Lockable around `Mutex`, with the count above.
template <typename Mutex>
class Shared {
 public:
  void lock() {
    ++shared_locks_taken;
    mutex_.lock();
  }
  bool try_lock() {
    ++shared_locks_taken;
    return mutex_.try_lock();
  }
  void unlock() { mutex_.unlock(); }

 private:
  Mutex mutex_;
};
template <util::LockRank rank>
using SharedMutex = Shared<util::Ranked<rank>>;
template <util::LockRank rank>
using SharedSpinLock = Shared<util::Ranked<rank, SpinLock>>;

}  // namespace cupool::engine
