// SPDX-License-Identifier: Apache-2.0
// Counts the frees in a lane (engine/reclaim/lane.h) that avoided a stall (stats/stall.h). One
// event is recorded behind the work before a free, and looked at now and then. While it is pending,
// so is what was submitted after it, since that went to the same stream: all frees since then that
// are old enough returned while the GPU was busy.
#pragma once

#include <atomic>
#include <cstdint>

#include "cuda/driver.h"
#include "stats/device_stats.h"

namespace cupool::engine {

/// One state for the process. Thread-safe: a look beside another one does nothing.
class LaneStalls {
 public:
  /// Called in the lane, by a free that has not waited, when it has recorded its mark: work was
  /// submitted since the last mark.
  static void freed(const cuda::Driver& driver, CUcontext context, CUstream stream,
                    stats::DeviceStats& stats, std::uint64_t now_ns);
  /// As at the start of the process, or when the context of the event is about to end.
  static void reset();

 private:
  static void look(const cuda::Driver& driver, stats::DeviceStats& stats);
  static bool watch(const cuda::Driver& driver, CUcontext context, CUstream stream);

  static inline std::atomic<std::uint64_t> frees_{0};  ///< so far; they are numbered from 1
  static inline std::atomic<bool> busy_{false};
  // Under `busy_`:
  static inline CUevent event_ = nullptr;
  static inline bool watched_ = false;          ///< the event is recorded, not seen complete
  static inline std::uint64_t covered_ = 0;     ///< the work after this free is behind the event
  static inline std::uint64_t counted_ = 0;     ///< no free up to this one is counted any more
  static inline std::uint64_t old_enough_ = 0;  ///< the newest free that is
  static inline std::uint64_t recent_ = 0;      ///< a newer one,
  static inline std::uint64_t recent_ns_ = 0;   ///< and its time
  static inline std::uint64_t next_look_ns_ = 0;
};

}  // namespace cupool::engine
