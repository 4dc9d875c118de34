// SPDX-License-Identifier: Apache-2.0
// Where a thread's stream waits for the thread's points (engine/context/thread_order): on the
// device, unless that could hold other threads up. The driver's free keeps threads of its context
// from submitting until it returns (measured), but from no wait or query, and no thread of another
// context. A wait on the host keeps its own thread alone, and no longer than that free.
#pragma once

#include "cuda/driver.h"
#include "engine/context/thread_work.h"

namespace cupool::engine {

/// Thread-safe; a thread's own state is its argument.
class DeviceWaits {
 public:
  /// The calling thread submits work, or comes to.
  static void thread_submits();
  /// The thread's entry is that of a stream to which it submits now: asks what kind it is.
  static void learn_kind(const cuda::Driver& driver, thread_work::Stream& stream);

  /// Whether waits on the device could hold other threads up by the queues of the GPU, which their
  /// streams share: many threads go from stream to stream across their frees, as this one does.
  static bool hold_up_queues(thread_work::State& state);
  /// Whether one in `stream` could hold other threads up: by the order that the legacy stream and
  /// the blocking ones have among themselves, or, for the point of another context, by that stream.
  static bool hold_up_streams(const thread_work::Stream& stream, bool is_own_point);

  static void thread_ends(const thread_work::State& state);
  /// For tests: as at the start of the process and of the calling thread.
  static void reset();
};

}  // namespace cupool::engine
