// SPDX-License-Identifier: Apache-2.0
// Spare memory of a context whose free by the driver waits for the context's work. This wait harms
// no capture. It also shows whether the driver would refuse the program's own free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/driver.h"
#include "engine/reclaim/closed_epochs.h"
#include "engine/reclaim/ordering_mutex.h"
#include "engine/reclaim/wait_result.h"

namespace cupool::engine {

/// Part of an Ordering; takes its lock. Thread-safe, except for functions in the section under the
/// lock.
class Barriers {
 public:
  Barriers(const cuda::Driver& driver, CUcontext context, OrderingMutex& mutex,
           ClosedEpochs& epochs)
      : driver_(driver), context_(context), mutex_(mutex), epochs_(epochs) {}

  /// Frees spare memory of this context by the driver, once and in the thread's own capture mode,
  /// so that the driver answers as for the program's free. A capture that refuses it is
  /// invalidated, as by the program's own free (contract 9). On success the GPU has completed all
  /// work of the context submitted before, and all blocks retired before can be reclaimed. Not
  /// possible: not refused, but there was no memory to wait by.
  WaitResult free_spare();
  /// As free_spare(), by a stream-ordered free, which waits for nothing.
  CUresult free_spare_in_stream(CUresult (*free)(CUdeviceptr, CUstream), CUstream stream);

  /// Records an event of the caller's behind all work of the context. False: not during a capture,
  /// or the driver refused.
  bool record_behind(CUevent event) const;

  /// Whether the device or host memory at `address` is a barrier, and not the program's.
  bool holds(CUdeviceptr address) const;

  // Under the lock:

  /// Waits for all work of the context by a barrier. Releases the lock and does not take it again.
  WaitResult wait(OrderingLock& lock);

  /// Ensures that a barrier is kept. It is allocated before a capture begins, so it remains
  /// available when the device or the host is full later.
  void ensure_spare();

  /// The context is gone, with its memory.
  void abandon();

 private:
  /// Driver memory whose free is a barrier: device memory, or host memory if the device is full.
  struct Barrier {
    CUdeviceptr device = 0;
    void* host = nullptr;  ///< page-locked
    bool none() const { return device == 0 && host == nullptr; }
  };

  /// A barrier lent to the thread that frees it.
  struct Loan {
    Barrier barrier;
    EpochNumber before = kNoEpoch;  ///< newest epoch that a wait by it completes
    std::uint64_t life = 0;
  };

  /// What became of a loan's barrier.
  enum class Fate {
    kept,    ///< the driver has not freed it
    gone,    ///< freed without a wait, or lost to an error
    waited,  ///< freed, and its free has waited for the context's work
  };

  Loan lend(OrderingLock& lock);
  void take_back(const Loan& loan, Fate fate);
  static Fate fate_after(CUresult answer);
  Barrier make() const;
  CUresult release(const Barrier& barrier) const;

  const cuda::Driver& driver_;
  const CUcontext context_;
  OrderingMutex& mutex_;
  ClosedEpochs& epochs_;
  std::uint64_t lives_ = 0;      ///< how often the context has ended
  std::vector<Barrier> unlent_;  ///< kept for the next waits and queries in a capture
};

}  // namespace cupool::engine
