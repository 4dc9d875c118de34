// SPDX-License-Identifier: Apache-2.0
// Reuse in stream order. While all work that is not complete went to one stream, the process is in
// one lane: a freed block may be handed out at once, since the work of its next owner runs behind
// the work of its last one.
//
// A free marks the stream: it records one event, the mark, if there were submissions since the last
// one. A submission anywhere else leaves the lane. From then on every other stream waits on the
// device for the latest mark before its next work, until the mark is seen complete. The mark is
// taken at the free and not at the leaving, because the driver's free waits for the work before it
// and no more: what the program submits after its free must not hold other streams back.
//
// The lane is that of the program's main stream, which a few calls show; until then there is none.
// Libraries use streams of their own for a moment (cuDNN clears memory when it is opened). So once
// the work of other streams is complete, the next submission to the lane's stream returns to it.
// What happens too often, or cannot be followed, leaves the lane for good. Read with
// docs/design.md, section Lanes.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "cuda/driver.h"
#include "engine/reclaim/lane_mark.h"
#include "engine/reclaim/lane_work.h"
#include "stats/device_stats.h"

namespace cupool::engine {

/// One state for the process. Thread-safe. May be called before the rest of cupool has started.
class Lane {
 public:
  /// What left the lane for good.
  enum class End : std::uint8_t {
    off,            ///< the settings exclude lanes
    second_stream,  ///< work was submitted to other streams too often
    per_thread,     ///< work was submitted to a per-thread default stream
    context,        ///< another context
    context_end,    ///< the end of its own
    destroyed,      ///< the program destroyed the stream
    unknown_work,   ///< work that cupool cannot assign to a stream, or may not see
    unseen_work,    ///< work that cupool did not see
    failure,        ///< the driver refused a mark
  };

  /// What a submission is to the lane.
  enum class Work : std::uint8_t {
    none,     ///< nothing: the lane was left for good, or the driver only captures
    inside,   ///< in the lane's stream
    outside,  ///< in another one, which the lane waits for
  };

  // Submissions. `stream` is always an explicit handle, never 0.

  /// Whether the process is in the lane of `stream`. One load.
  [[gnu::always_inline]] static bool holds(CUstream stream) {
    return word_.load(std::memory_order_relaxed) == key_of(stream);
  }
  /// Whether submissions need no attention any more: the lane was left for good, and no stream
  /// waits for the mark. Two loads.
  [[gnu::always_inline]] static bool is_over() {
    return word_.load(std::memory_order_acquire) == kLeft && !LaneMark::is_awaited();
  }
  /// Before work is submitted to a stream for which neither holds. LaneWork::submitted() or
  /// submitted_outside() has to follow work inside or outside.
  static Work admit(const cuda::Driver& driver, CUstream stream, const char* call);

  /// After work was submitted outside.
  static void submitted_outside(const cuda::Driver& driver, CUstream stream);

  /// Whether the process is in a lane of this context.
  static bool is_in(CUcontext context) {
    return is_open() && context_.load(std::memory_order_relaxed) == context;
  }

  /// Leaves the lane for good; no effect if it was left before. When it returns, no block freed
  /// later is handed out in stream order.
  static void leave(End why, const char* call = nullptr);
  /// Leaves it because of work whose stream is not known, and waits for the mark on the host.
  static void leave_unknown(const cuda::Driver& driver, const char* call);

  /// In a free whose block has no other work to wait for: whether the block may be handed out at
  /// once. Two loads; false if covers_free() has to decide.
  [[gnu::always_inline]] static bool covers_free_at_once() { return !LaneWork::any() && is_open(); }
  /// The same, with a mark if one is needed. `stats`: of a free that has not waited for the GPU, to
  /// count the stall that it may avoid.
  static bool covers_free(const cuda::Driver& driver, stats::DeviceStats* stats = nullptr);
  /// Whether the process is in a lane.
  [[gnu::always_inline]] static bool is_open() {
    return is_key(word_.load(std::memory_order_seq_cst));
  }

  /// Called before `stream` is destroyed.
  static void destroys(CUstream stream);
  /// What the program has of a context.
  enum class Seen : std::uint8_t {
    held,     ///< it was never current, so it has no work
    current,  ///< it is, or was
  };
  /// The program holds or uses this context.
  static void context_seen(CUcontext context, Seen seen = Seen::current);
  /// Called before `context` ends, with its event. Waits for the mark, as the driver's end of a
  /// context waits for its work. Without `driver` it has ended already.
  static void context_ends(const cuda::Driver* driver, CUcontext context);

  /// In a forked child, or when a signal handler leaves: over, without the lock, which may be held
  /// for ever.
  static void end_without_lock();
  /// For tests: as at the start of the process.
  static void reset();

 private:
  static constexpr std::uint64_t kNoWork = 0;  ///< not enough to tell the main stream
  static constexpr std::uint64_t kLeft = 1;    ///< for good
  static constexpr std::uint64_t kAway = 3;    ///< other streams have work
  // Handles are addresses of at least 4096 but for the default streams, 1 and 2. Keys are even.
  static std::uint64_t key_of(CUstream stream) {
    return reinterpret_cast<std::uint64_t>(stream) << 1;
  }
  static bool is_key(std::uint64_t word) { return word > kLeft && word != kAway; }

  static void open(CUcontext context, CUstream stream);
  static bool go_outside(const cuda::Driver& driver, CUstream stream, const char* call);
  static void try_to_return(const cuda::Driver& driver);
  static void close(std::uint64_t word);
  static void leave_locked(End why, const char* call = nullptr);

  // Read by every submission and every free, written when the lane opens and when it is left.
  alignas(128) static std::atomic<std::uint64_t> word_;
  static std::atomic<CUcontext> context_;  ///< a name: orders nothing
};

/// Whether the program has used several contexts, so that the handle of a default stream means
/// another stream in each. Thread-safe; one load.
bool several_contexts();

/// The contexts that were current besides the first one, and that have not ended; the others are
/// null. `std::nullopt`: they are too many to know. Thread-safe.
using SeenContexts = std::array<CUcontext, 16>;
std::optional<SeenContexts> other_contexts_seen();

}  // namespace cupool::engine
