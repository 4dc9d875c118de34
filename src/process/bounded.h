// SPDX-License-Identifier: Apache-2.0
// Work at the end of a process, bounded in time because locks may be held for ever.
#pragma once

#include <chrono>
#include <mutex>

namespace cupool::process {

/// Runs `work`, and abandons it after `milliseconds`: its locks stay held, and its destructors do
/// not run. False if it was abandoned or could not start. Uses a signal to the calling thread only,
/// and restores the process's handler. Uses no heap.
bool do_within(int milliseconds, void (*work)()) noexcept;

/// A lock whose holder may be in the driver for ever: not taken, then, once `limit` is over.
class BoundedLock {
 public:
  BoundedLock(std::mutex& mutex, std::chrono::milliseconds limit);
  ~BoundedLock() {
    if (taken_) mutex_.unlock();
  }
  BoundedLock(const BoundedLock&) = delete;
  BoundedLock& operator=(const BoundedLock&) = delete;

  explicit operator bool() const { return taken_; }

 private:
  std::mutex& mutex_;
  const bool taken_;
};

}  // namespace cupool::process
