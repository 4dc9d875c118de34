// SPDX-License-Identifier: Apache-2.0
// Figures of the program's threads: one entry for each of the first 256 that allocate, one for all
// others together. Only sums, updated in slow paths and when a thread's tally is folded.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cupool::stats {

inline constexpr std::size_t kListedThreads = 256;

/// Waits of the calling thread's frees so far.
inline thread_local std::uint64_t waits_of_thread = 0;

/// A thread at the moment of a snapshot; the keys are those of the counters.
struct ThreadSnapshot {
  int tid = 0;       ///< the kernel's; 0 for all others together
  std::string name;  ///< at its first allocation
  std::uint64_t malloc_calls_total = 0;
  std::uint64_t malloc_requested_bytes_total = 0;
  std::uint64_t free_calls_total = 0;
  std::uint64_t free_waits_total = 0;
  std::uint64_t free_wait_ns_total = 0;
};

/// The sums of one thread. All members are thread-safe, lock-free and cannot fail.
class ThreadFigures {
 public:
  constexpr ThreadFigures() noexcept = default;
  ThreadFigures(const ThreadFigures&) = delete;
  ThreadFigures& operator=(const ThreadFigures&) = delete;

  void add_mallocs(std::uint64_t calls, std::uint64_t bytes) noexcept {
    mallocs_.fetch_add(calls, std::memory_order_relaxed);
    malloc_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  void add_frees(std::uint64_t calls) noexcept {
    frees_.fetch_add(calls, std::memory_order_relaxed);
  }
  /// Of the calling thread. `waits`: 0 for a further wait of a free that has waited.
  void add_wait(std::uint64_t duration_ns, std::uint64_t waits = 1) noexcept {
    waits_of_thread += waits;
    waits_.fetch_add(waits, std::memory_order_relaxed);
    wait_ns_.fetch_add(duration_ns, std::memory_order_relaxed);
  }

 private:
  friend ThreadFigures& this_thread() noexcept;
  friend std::vector<ThreadSnapshot> thread_snapshots(ThreadSnapshot* others,
                                                      std::uint64_t* other_threads);
  friend void reset_threads() noexcept;
  ThreadSnapshot read() const;
  void reset() noexcept;

  std::atomic<int> tid_{0};  // set last: only then the name may be read
  char name_[16] = {};
  std::atomic<std::uint64_t> mallocs_{0};
  std::atomic<std::uint64_t> malloc_bytes_{0};
  std::atomic<std::uint64_t> frees_{0};
  std::atomic<std::uint64_t> waits_{0};
  std::atomic<std::uint64_t> wait_ns_{0};
};

/// The calling thread's figures. Static storage, never freed.
ThreadFigures& this_thread() noexcept;

/// The threads with entries of their own, in the order of their first allocations; sum and number
/// of the others. Throws only std::bad_alloc.
std::vector<ThreadSnapshot> thread_snapshots(ThreadSnapshot* others, std::uint64_t* other_threads);

/// Resets all; for a forked child, before other threads exist.
void reset_threads() noexcept;

}  // namespace cupool::stats
