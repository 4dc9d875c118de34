// SPDX-License-Identifier: Apache-2.0
// The free policy: which work a free waits for, and why. One function decides for every route of a
// free. Read with docs/compatibility.md, which states the promise of each mode.
#pragma once

#include <atomic>
#include <cstdint>

#include "config/settings.h"
#include "engine/context/context.h"
#include "engine/reclaim/host_reachable.h"
#include "stats/device_stats.h"

namespace cupool::engine {

/// Thread-safe. Read by every call and rarely written, so it has cache lines of its own.
class alignas(128) FreePolicy {
 public:
  explicit FreePolicy(config::FreeMode mode)
      : mode_(mode == config::FreeMode::automatic ? Mode::automatic
              : mode == config::FreeMode::ordered ? Mode::ordered
                                                  : Mode::sync) {}

  /// The mode in force, with `auto` resolved for this process.
  config::FreeMode mode() const {
    const Mode now = now_in_force();
    if (now == Mode::ordered) return config::FreeMode::ordered;
    const bool waits = now == Mode::sync || now == Mode::until_messages;
    return waits ? config::FreeMode::sync : config::FreeMode::automatic;
  }

  /// Who may see memory outside CUDA's order, in a process whose mode is `auto`.
  enum class Others {
    by_messages,         ///< by calls of MPI that cupool sees
    by_messages_unseen,  ///< by calls of MPI, none of which cupool has seen so far
    at_any_time,         ///< by means that cupool does not see, from now on
  };
  /// Frees wait for the context, unless others see memory by messages alone. What was at_any_time
  /// stays so.
  void let_see(Others others) {
    if (now_in_force() == Mode::ordered) return;
    const Mode next = others == Others::by_messages          ? Mode::messages
                      : others == Others::by_messages_unseen ? Mode::until_messages
                                                             : Mode::sync;
    Mode before = now_in_force();
    while (before != Mode::sync &&
           !mode_.compare_exchange_weak(before, next, std::memory_order_release)) {
    }
  }
  /// Whether let_see() was called, or frees wait anyway.
  bool knows_of_others() const {
    const Mode now = now_in_force();
    return now != Mode::automatic && now != Mode::ordered;
  }
  /// Whether the first call of MPI that cupool sees changes the mode.
  bool awaits_messages() const {
    const Mode now = now_in_force();
    return now == Mode::until_messages || now == Mode::automatic;
  }

  /// Whether a free waits for work that touches host memory, or may later, so that such work has to
  /// be noted.
  bool waits_for_host_work() const {
    const Mode now = now_in_force();
    return now != Mode::ordered && now != Mode::sync;
  }

  /// The program's host memory that kernels can reach.
  HostReachable& host_reachable() { return host_reachable_; }
  const HostReachable& host_reachable() const { return host_reachable_; }

  /// The work that a free waits for before it returns.
  struct Wait {
    enum class For {
      nothing,
      messages,   ///< nothing, but the program's next call of MPI waits (engine/serve/messages)
      host_work,  ///< copies, callbacks and similar work with events of its own
      context,    ///< all work of the context
    };
    For what;
    stats::Counter reason;  ///< counter of this wait; meaningless for `nothing`
  };

  /// Whether a free in `context` waits for nothing at present. Loads only.
  [[gnu::always_inline]] bool waits_for_nothing(Context& context) const {
    using Kind = HostReachable::Kind;
    HostWork& host_work = context.host_work();
    const Mode now = now_in_force();
    // Calls under way first: what was noted meanwhile is found behind them.
    return now == Mode::ordered || (now == Mode::automatic && !host_reachable_.any(Kind::managed) &&
                                    !host_reachable_.any(Kind::zero_copy) &&
                                    !host_work.calls().any() && !HostWorkCalls::early().any() &&
                                    !host_work.needs_context() && !host_work.maybe_pending());
  }

  /// The wait of a free in `context` at present. Beside a call whose work touches host memory it
  /// takes a moment itself.
  [[gnu::always_inline]] Wait wait_of(Context& context) const {
    if (waits_for_nothing(context)) return {Wait::For::nothing, stats::Counter::free_waits_total};
    return wait_if_any(context);
  }

 private:
  Wait wait_if_any(Context& context) const {
    using For = Wait::For;
    using Kind = HostReachable::Kind;
    using stats::Counter;
    const Mode now = now_in_force();
    if (now == Mode::ordered) return {For::nothing, Counter::free_waits_total};
    if (now == Mode::sync || now == Mode::until_messages) {
      return {For::context, Counter::free_waits_sync_total};
    }
    // Any kernel may touch such memory, so only a wait for the whole context is enough.
    if (host_reachable_.any(Kind::managed)) {
      return {For::context, Counter::free_waits_managed_total};
    }
    if (host_reachable_.any(Kind::zero_copy)) {
      return {For::context, Counter::free_waits_zero_copy_total};
    }
    HostWork& host_work = context.host_work();
    const bool noted = host_work.calls().are_noted() && HostWorkCalls::early().are_noted();
    if (!noted || host_work.needs_context()) {
      return {For::context, Counter::free_waits_host_copy_total};
    }
    if (host_work.maybe_pending()) return {For::host_work, Counter::free_waits_host_copy_total};
    return {now == Mode::automatic ? For::nothing : For::messages, Counter::free_waits_total};
  }

  enum class Mode : std::uint8_t { automatic, messages, until_messages, ordered, sync };
  Mode now_in_force() const { return mode_.load(std::memory_order_relaxed); }

  std::atomic<Mode> mode_;
  alignas(128) HostReachable host_reachable_;
};

}  // namespace cupool::engine
