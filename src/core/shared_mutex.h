// Locks that all threads of a context share. They count how often a thread takes one: what the fast
// path must not do (I5), and what tests and benchmarks therefore look at.
#pragma once

#include <sched.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <mutex>

namespace cupool::core {

/// Tells the processor that this thread looks at what another one will write.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/// For a few instructions that call nothing. A holder that is off its processor is yielded to, and
/// then slept for: a thread of real-time priority would keep one of lower priority off it for ever.
class SpinLock {
 public:
  void lock() {
    if (locked_.exchange(true, std::memory_order_acquire)) wait();
  }
  bool try_lock() { return !locked_.exchange(true, std::memory_order_acquire); }
  void unlock() { locked_.store(false, std::memory_order_release); }

 private:
  void wait() {
    constexpr unsigned kLooks = 64;  // between two system calls
    constexpr unsigned kYields = 16;
    for (unsigned looks = 1;; ++looks) {
      if (!locked_.load(std::memory_order_relaxed) && try_lock()) return;
      relax();
      if (looks % kLooks != 0) continue;
      if (looks <= kLooks * kYields) {
        sched_yield();
      } else {
        constexpr timespec kMoment{0, 50'000};
        nanosleep(&kMoment, nullptr);
      }
    }
  }

  std::atomic<bool> locked_{false};
};

/// How often the calling thread has taken a shared lock, or tried to.
inline thread_local std::uint64_t shared_locks_taken = 0;

/// A Lockable around another one.
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
using SharedMutex = Shared<std::mutex>;
using SharedSpinLock = Shared<SpinLock>;

}  // namespace cupool::core
