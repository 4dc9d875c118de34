// SPDX-License-Identifier: Apache-2.0
// Counts the threads in a context, and lets none in while the context ends. Visits and ends are
// context_visit.h; here is the counting alone, so that every interleaving of it can be explored.
#pragma once

#include <atomic>
#include <cstdint>

namespace cupool::engine {

/// One per context. Thread-safe. The hot path does not use the gate: work on the thread's own
/// cache, under that cache's lock, is not a visit.
class ContextGate {
 public:
  /// Lets the calling thread in. While the context's end is being decided, waits for `limit_ns` at
  /// most (0: no limit). False: not inside. The caller is in no visit.
  bool enter(std::uint64_t limit_ns = 0);
  void leave() { word_.fetch_sub(kVisitor, std::memory_order_release); }

  /// Closes the gate once the threads that already wait have been let in. Returns when no thread is
  /// inside, except for `own` visits of the calling thread. False: a thread was still inside after
  /// ten seconds.
  bool close(unsigned own);
  void open() { word_.fetch_sub(kCloser, std::memory_order_release); }

  /// Whether a thread is about to end the context, or is still cleaning up after its end.
  bool is_closed() const { return word_.load(std::memory_order_acquire) >= kCloser; }

  /// An end goes on though a thread is inside, which may come back to another life of the context.
  void was_not_awaited() { left_inside_.store(true, std::memory_order_release); }
  /// Whether that ever was so.
  bool any_left_inside() const { return left_inside_.load(std::memory_order_acquire); }

  /// Waits until the gate is open. The caller is in no visit.
  void wait_until_open() const;

 private:
  static constexpr std::uint64_t kVisitor = 1;
  static constexpr std::uint64_t kCloser = std::uint64_t{1} << 32;
  static constexpr std::uint64_t kVisitors = kCloser - 1;

  bool try_enter();

  std::atomic<std::uint64_t> word_{0};  ///< closers in the upper half, visitors in the lower
  std::atomic<unsigned> waiting_{0};    ///< threads waiting to enter; orders nothing
  std::atomic<bool> left_inside_{false};
};

}  // namespace cupool::engine
