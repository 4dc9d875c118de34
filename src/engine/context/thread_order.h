// SPDX-License-Identifier: Apache-2.0
// What a free orders besides memory. The driver's free waits for all work of the context, so
// whatever the freeing thread does next comes after the work before it, in any stream. Programs
// lean on that without knowing. cupool's free does not wait for the GPU; the wait moves to where
// the difference would be seen:
//
// - What the thread submits next comes, on the device, behind what it had itself submitted to other
//   streams before the free.
// - The time between two events is asked for: the host waits then, as the free would have.
// - The thread ends, so that another one may go on in its place: the host waits.
//
// A free therefore records an event, the thread's point, on each stream to which the thread has
// submitted work since its last free. In one lane the stream's own order is enough (docs/design.md,
// section Order behind a free).
#pragma once

#include <atomic>
#include <cstdint>

#include "cuda/driver.h"

namespace cupool::engine {

class Context;

/// The calling thread's order, and whether there is any in this process: only in `auto`.
/// Thread-safe.
class ThreadOrder {
  friend class LaunchOrder;

 public:
  /// `served_free`: nothing, but another thread may use the memory in that stream next.
  /// `others_work`: which that stream has come to wait for, by an allocation in its order or a wait
  /// for an event. The next free comes behind it. It waits for no points, as with the driver.
  enum class What { work, served_free, others_work };
  /// Before the calling thread submits work to `stream`, an explicit handle, or records an event
  /// there, while the process is not in its lane. Has the stream wait, on the device, for the
  /// thread's points on other streams.
  [[gnu::always_inline]] static void submits(const cuda::Driver& driver, CUstream stream,
                                             What what = What::work) {
    Hot& hot = hot_;
    if (what == What::served_free && !hot.has_points) return;
    const std::uint64_t word = word_.load(std::memory_order_relaxed);
    if (word == kOff) return;
    if (word != hot.word || stream != hot.stream) return submits_elsewhere(driver, stream, what);
    if (what != What::served_free) hot.has_work = *hot.unmarked = true;
  }
  /// Before it submits work to the lane's stream while the process is in the lane.
  [[gnu::always_inline]] static void submits_in_lane() {
    if (!hot_.has_lane_work) first_in_lane();
  }
  /// Before work whose streams are not known: waits for the points on the host.
  static void submits_unknown(const cuda::Driver& driver);

  /// Whether the calling thread has submitted work since its last call of frees(), or another one
  /// has ended with such work.
  [[gnu::always_inline]] static bool has_work() {
    return hot_.has_work || hot_.has_lane_work ||
           hot_.left != left_.load(std::memory_order_relaxed);
  }
  /// The calling thread frees a block of `context`, and does not wait for the GPU: records its
  /// points. False: not possible now, and the free has to wait for the context.
  static bool frees(const cuda::Driver& driver, Context& context);

  enum class Of { own, own_and_lane };
  /// Whether all work before the thread's frees outside a lane is complete, and before any thread's
  /// frees in a lane.
  static bool is_complete(const cuda::Driver& driver, Of frees = Of::own_and_lane);

  /// The calling thread has waited for `stream`, or for a whole context.
  static void has_waited_for(CUstream stream);
  static void has_waited_for_context(CUcontext context);

  /// Before a stream is destroyed, by any thread, or a context with its streams: their handles may
  /// name other streams later.
  static void destroys_stream() {
    for (std::uint64_t word = word_.load(std::memory_order_relaxed); word > kOff;) {
      if (word_.compare_exchange_weak(word, word + 1, std::memory_order_seq_cst,
                                      std::memory_order_relaxed)) {
        return;
      }
    }
  }
  /// The calling thread's current context may change, and with it the default streams.
  static void current_may_change() { hot_.stream = nullptr; }
  /// Returns when no thread uses an event on a stream that a capture may join. Captures are counted
  /// before (StreamContexts::begin_capture()).
  static void let_users_out();

  /// The calling thread ends: waits for its points.
  static void thread_ends(const cuda::Driver& driver);
  /// No order any more: free calls wait, the program's libraries order their streams themselves, or
  /// the process ends or was forked.
  static void stop() { word_.store(kOff); }
  static bool is_on() { return word_.load(std::memory_order_relaxed) != kOff; }
  /// For tests: as at the start of the process and of the calling thread.
  static void reset();

 private:
  static constexpr std::uint64_t kUnknown = 0;  ///< the settings have not been read
  static constexpr std::uint64_t kOff = 1;
  // Greater: on, and counts destroyed streams.

  static void first_in_lane();
  static void submits_elsewhere(const cuda::Driver& driver, CUstream stream, What what);
  static void submits_without_state();
  static bool leaves_work(const cuda::Driver& driver);
  static bool is_on_for_thread(const cuda::Driver& driver);

  /// The stream that the thread used last, if it waits for no point. One line for each thread.
  struct Hot {
    std::uint64_t word;  ///< for which the rest is true
    CUstream stream;     ///< null: none
    bool* unmarked;      ///< of that stream
    bool has_work;
    bool has_lane_work;
    bool has_points;     ///< has recorded one, perhaps long ago
    std::uint64_t left;  ///< value of left_ that its frees have covered
  };
  static inline thread_local Hot hot_{};
  // Read by every submission outside a lane. Who has a new stream with an old handle knows of the
  // old one's end by that; a free beside that end asks in sequential order.
  alignas(128) static inline std::atomic<std::uint64_t> word_{kUnknown};
  /// Threads that have ended with work behind no free. One that joins such a thread, and frees,
  /// may go on in its place. The joining orders them.
  static inline std::atomic<std::uint64_t> left_{0};
};

/// Dependent launches, which might begin before the work that the thread's points on their own
/// stream cover. Thread-safe.
class LaunchOrder {
 public:
  /// Whether a launch into `stream`, an explicit handle, may be the calling thread's first one
  /// there behind its last free outside a lane. After ThreadOrder::submits().
  [[gnu::always_inline]] static bool is_first(const cuda::Driver& driver, CUstream stream) {
    return ThreadOrder::hot_.has_points && is_first_behind_points(driver, stream);
  }
  /// One has been submitted to `stream` that begins behind all work there.
  static void submitted(const cuda::Driver& driver, CUstream stream);

 private:
  static bool is_first_behind_points(const cuda::Driver& driver, CUstream stream);
};

}  // namespace cupool::engine
