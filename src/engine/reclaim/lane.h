// SPDX-License-Identifier: Apache-2.0
// Reuse in stream order. While all work that the process has ever submitted went to one stream, the
// process is in one lane: a freed block may be handed out at once, since the work of its next owner
// runs behind the work of its last one.
//
// A free marks the stream: it records one event, the mark, if there were submissions since the last
// one. The first submission anywhere else leaves the lane for good. From then on every other stream
// waits on the device for the latest mark before its next work, until the mark is seen complete.
// The mark is taken at the free and not at the leaving, because the driver's free waits for the
// work before it and no more: what the program submits after its free must not hold other streams
// back. Read with docs/design.md, section Lanes.
#pragma once

#include <atomic>
#include <cstdint>

#include "cuda/driver.h"
#include "engine/reclaim/lane_mark.h"

namespace cupool::engine {

/// One state for the process. Thread-safe. May be called before the rest of cupool has started.
class Lane {
 public:
  /// What left the lane.
  enum class End : std::uint8_t {
    off,            ///< the settings exclude lanes
    second_stream,  ///< work was submitted to another stream
    per_thread,     ///< the first work went to a per-thread default stream
    context,        ///< another context, or the end of the first
    destroyed,      ///< the program destroyed the stream
    unknown_work,   ///< work that cupool cannot assign to a stream
    failure,        ///< the driver refused a mark
  };

  // Submissions. `stream` is always an explicit handle, never 0.

  /// Whether the process is in the lane of `stream`. One load.
  [[gnu::always_inline]] static bool holds(CUstream stream) {
    return word_.load(std::memory_order_relaxed) == key_of(stream);
  }
  /// Whether submissions need no attention any more: the lane was left, and no stream waits for the
  /// mark. Two loads.
  [[gnu::always_inline]] static bool is_over() {
    return word_.load(std::memory_order_relaxed) == kLeft && !LaneMark::is_awaited();
  }
  /// Before work is submitted to a stream for which neither holds. True: the work counts, and
  /// submitted() has to follow it.
  static bool admit(const cuda::Driver& driver, CUstream stream);
  /// After work was submitted to the stream of the lane.
  [[gnu::always_inline]] static void submitted() {
    if (!submitted_.load(std::memory_order_acquire)) {
      submitted_.store(true, std::memory_order_release);
    }
  }

  /// Leaves the lane; no effect if it was left before. When it returns, no block freed later is
  /// handed out in stream order.
  static void leave(End why);
  /// Leaves the lane because of work whose stream is not known, and waits for the mark on the host.
  static void leave_unknown(const cuda::Driver& driver);

  /// In a free whose block has no other work to wait for: whether the block may be handed out at
  /// once. Two loads; false if covers_free() has to decide.
  [[gnu::always_inline]] static bool covers_free_at_once() {
    return !submitted_.load(std::memory_order_acquire) && is_open();
  }
  /// The same, with a mark if one is needed.
  static bool covers_free(const cuda::Driver& driver);
  /// Whether the process is in a lane.
  [[gnu::always_inline]] static bool is_open() {
    return word_.load(std::memory_order_seq_cst) > kLeft;
  }

  /// Returns when no thread is recording a mark. Called after a capture was announced
  /// (Serving::capture_begins()) and before it begins.
  static void let_marks_in();
  /// Called before `stream` is destroyed.
  static void destroys(CUstream stream);
  /// The program holds or uses this context.
  static void context_seen(CUcontext context);
  /// Called before `context` ends, with its event. Waits for the mark, as the driver's end of a
  /// context waits for its work.
  static void context_ends(const cuda::Driver& driver, CUcontext context);

  /// In a forked child, which cannot use the GPU: over, without the lock, which may be held for
  /// ever.
  static void end_in_child();
  /// For tests: as at the start of the process.
  static void reset();

 private:
  static constexpr std::uint64_t kNoWork = 0;  ///< nothing was submitted yet
  static constexpr std::uint64_t kLeft = 1;
  // Handles are addresses of at least 4096 but for the default streams, 1 and 2.
  static std::uint64_t key_of(CUstream stream) {
    return reinterpret_cast<std::uint64_t>(stream) << 1;
  }

  static bool open(const cuda::Driver& driver, CUstream stream);
  static void leave_locked(End why);

  // Read by every submission and every free, written when the lane opens and when it is left.
  alignas(128) static std::atomic<std::uint64_t> word_;
  static std::atomic<CUcontext> context_;
  // Written by submissions and marks.
  alignas(128) static std::atomic<bool> submitted_;  ///< since the last mark
};

/// Around a driver call that submits work to `stream`, an explicit handle.
class Submission {
 public:
  [[gnu::always_inline]] Submission(const cuda::Driver& driver, CUstream stream)
      : counts_(Lane::holds(stream) || (!Lane::is_over() && Lane::admit(driver, stream))) {}
  [[gnu::always_inline]] ~Submission() {
    if (counts_) Lane::submitted();
  }
  Submission(const Submission&) = delete;
  Submission& operator=(const Submission&) = delete;

 private:
  const bool counts_;
};

}  // namespace cupool::engine
