// SPDX-License-Identifier: Apache-2.0
// The waits of a free: those that FreePolicy asks for, and those that bound pending bytes.
#pragma once

#include <atomic>

#include "engine/serve/free_policy.h"
#include "engine/serve/idle_memory.h"

namespace cupool::engine {

/// Thread-safe.
class FreeWait {
 public:
  explicit FreeWait(IdleMemory& idle) : idle_(idle) {}

  /// Whether the free has waited before, for another reason. It counts once, and for the first one;
  /// the time of its waits is added up.
  enum class Waited : std::uint8_t {
    no,
    no_and_counted,  ///< as a stall that it has avoided
    yes,
  };

  /// Waits for host-memory work that has events of its own.
  WaitResult wait_for_host_work(Context& context, Waited before = Waited::no);

  /// Waits for all work of the context that `epoch` covers. `before`: the mark of host work taken
  /// before the block joined `epoch`.
  WaitResult wait_for_context(Context& context, const HostWork::Mark& before, EpochNumber epoch,
                              stats::Counter reason, Waited waited);

  /// Waits for the oldest epochs, which complete first, while pending bytes exceed their limit and
  /// a wait is possible. Returns the driver's error if it fails.
  CUresult bound_pending(Context& context, std::uint64_t bytes_freed, Waited before);

  /// Frees that are in one of these waits. Thread-safe; waits for nothing.
  static unsigned waiting_now() { return waiting_.load(std::memory_order_relaxed); }

  /// The program's result for a free after the driver's `error`, or after none. `life`: of the
  /// context, when the block was claimed.
  static CUresult answer_of_free(Context& context, std::uint64_t life, CUresult error);

 private:
  class Waiting;

  /// Limit of pending bytes for a free of `bytes_freed`. If they exceed a batch of small blocks,
  /// they are added to the limit: a wait for them would let the GPU run dry and save no memory,
  /// since they were live until now.
  static std::uint64_t pending_limit(Context& context, std::uint64_t bytes_freed);
  static void count_wait(stats::DeviceStats& stats, stats::Counter reason, std::uint64_t start_ns,
                         Waited before);

  inline static std::atomic<unsigned> waiting_{0};

  IdleMemory& idle_;
};

}  // namespace cupool::engine
