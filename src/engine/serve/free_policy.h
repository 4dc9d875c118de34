// SPDX-License-Identifier: Apache-2.0
// The free policy: which work a free waits for, and why. One function decides for every route of a
// free. Read with docs/compatibility.md, which states the promise of each mode.
#pragma once

#include <atomic>

#include "config/settings.h"
#include "engine/context/context.h"
#include "engine/reclaim/host_reachable.h"
#include "stats/device_stats.h"

namespace cupool::engine {

/// Thread-safe. Read by every call and rarely written, so it has cache lines of its own.
class alignas(128) FreePolicy {
 public:
  explicit FreePolicy(config::FreeMode mode) : mode_(mode) {}

  /// The mode in force, with `auto` resolved for this process.
  config::FreeMode mode() const { return mode_.load(std::memory_order_relaxed); }
  void set_mode(config::FreeMode mode) { mode_.store(mode, std::memory_order_relaxed); }

  /// Whether a free waits for work that touches host memory, so that such work has to be noted.
  bool waits_for_host_work() const { return mode() == config::FreeMode::automatic; }

  /// The program's host memory that kernels can reach.
  HostReachable& host_reachable() { return host_reachable_; }
  const HostReachable& host_reachable() const { return host_reachable_; }

  /// The work that a free waits for before it returns.
  struct Wait {
    enum class For {
      nothing,
      host_work,  ///< copies, callbacks and similar work with events of its own
      context,    ///< all work of the context
    };
    For what;
    stats::Counter reason;  ///< counter of this wait; meaningless for `nothing`
  };

  /// The wait of a free in `context` at present.
  [[gnu::always_inline]] Wait wait_of(Context& context) const {
    using For = Wait::For;
    using Kind = HostReachable::Kind;
    using stats::Counter;
    const config::FreeMode now = mode();
    if (now == config::FreeMode::ordered) return {For::nothing, Counter::free_waits_total};
    if (now == config::FreeMode::sync) return {For::context, Counter::free_waits_sync_total};
    // Any kernel may touch such memory, so only a wait for the whole context is enough.
    if (host_reachable_.any(Kind::managed)) {
      return {For::context, Counter::free_waits_managed_total};
    }
    if (host_reachable_.any(Kind::zero_copy)) {
      return {For::context, Counter::free_waits_zero_copy_total};
    }
    HostWork& host_work = context.host_work();
    if (host_work.needs_context()) return {For::context, Counter::free_waits_host_copy_total};
    if (host_work.maybe_pending()) return {For::host_work, Counter::free_waits_host_copy_total};
    return {For::nothing, Counter::free_waits_total};
  }

 private:
  std::atomic<config::FreeMode> mode_;
  alignas(128) HostReachable host_reachable_;
};

}  // namespace cupool::engine
