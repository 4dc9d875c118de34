// SPDX-License-Identifier: Apache-2.0
// Work on streams other than that of the lane (engine/reclaim/lane.h), until it is complete: then
// all pending work is in the lane's stream. Before there is a lane, work on every stream, to learn
// which one is the program's main stream.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "cuda/driver.h"
#include "engine/reclaim/use_count.h"
#include "util/lock_order.h"

namespace cupool::engine {

/// Thread-safe. Every begin() that was answered with true is followed by its end().
class OtherStreams {
 public:
  /// Before `call` submits work to `stream`, an explicit handle, in the lane's context. False:
  /// there were too many such calls, or too many streams have work at once; then it is not counted.
  bool begin(const cuda::Driver& driver, CUstream stream, const char* call);
  /// After it was submitted: records an event behind it. `context`: that of the lane.
  void end(const cuda::Driver& driver, CUcontext context, CUstream stream);
  /// Whether no call is between begin() and end(), and all work is complete, but for `stream`.
  bool are_complete_but(const cuda::Driver& driver, CUstream stream);
  /// Whether the program's main work seems to go to `stream`: enough kernels, or calls of any kind.
  bool is_main(CUstream stream);

  /// Returns when no thread is between its look for captures and its event (I3).
  static void let_users_out() { users_.wait_until_none(); }

  /// `stream` is about to be destroyed: its handle may name another one later. The caller waits for
  /// others that use it (StreamUse) before it is.
  void destroys(CUstream stream);
  /// For good, without the lock, which may be held for ever: nothing is counted any more.
  void end_without_lock() { over_.store(true, std::memory_order_relaxed); }
  /// For tests: as at the start of the process.
  void reset();

 private:
  struct Stream {
    CUstream handle = nullptr;  ///< null: destroyed, or none
    CUevent event = nullptr;    ///< stays for the next stream
    bool pending = false;       ///< the event was recorded, and not seen complete
    unsigned in_flight = 0;     ///< calls between begin() and end()
    unsigned calls = 0;
    unsigned launches = 0;  ///< of kernels and graphs, among them

    bool is_quiet() const { return !pending && in_flight == 0; }
  };

  static constexpr std::size_t kMostStreams = 8;
  static inline UseCount users_;

  Stream* find(CUstream stream);
  Stream* find_or_take(const cuda::Driver& driver, CUstream stream);
  void look(const cuda::Driver& driver);
  bool is_too_often();

  util::Ranked<util::LockRank::other_streams> mutex_;
  std::array<Stream, kMostStreams> streams_;
  std::uint64_t calls_ = 0;     ///< of begin()
  std::uint64_t first_ns_ = 0;  ///< time of the first one
  bool failed_ = false;         ///< an event could not be recorded
  std::atomic<bool> over_{false};
};

}  // namespace cupool::engine
