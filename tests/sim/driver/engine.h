// SPDX-License-Identifier: Apache-2.0
// Executes operations in one of three ways (late, early, timed) and knows what the host has seen
// complete. Everything is called with the world's lock held.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "driver/deadlock.h"
#include "driver/op.h"
#include "driver/settings.h"

namespace cupool::sim {

using Lock = std::unique_lock<std::mutex>;

uint64_t now_ns();

/// True on the service thread while it runs a host function: CUDA may not be called from there.
extern thread_local bool in_host_function;

class Engine {
 public:
  Engine(const Settings& settings, std::mutex& mutex)
      : settings_(settings), mutex_(mutex), deadlocks_(mutex) {}

  /// Gives the operation its predecessors and, in early mode, runs it if they allow.
  OpRef submit(Context& context, OpSpec spec, const std::vector<OpRef>& before, Clock clock,
               Instant at);

  /// The same for what takes no time and has no place in a stream: it has executed as soon as its
  /// predecessors have.
  OpRef submit_aside(Context& context, OpSpec spec, const std::vector<OpRef>& before, Clock clock);

  /// The host waits: on return all of them have executed and the host knows.
  void complete(Lock& lock, const std::vector<OpRef>& ops);

  /// The host asks often enough: runs what was to come before them, but does not wait for host
  /// functions. True: all have executed.
  bool hasten(Lock& lock, const std::vector<OpRef>& ops);

  /// Whether all have executed, without making anything happen (but for the passing of time).
  bool finished(const std::vector<OpRef>& ops);

  /// The host has been told that these are complete.
  void observe(const std::vector<OpRef>& ops);

  /// Drops the context's pending work without running it: after a sticky error or a destruction.
  /// Nothing that the context ever did touches memory after that, and nothing else is concluded.
  void cancel(Context& context);

  /// Runs all pending work the old way first: nothing is pending across a change of rules.
  void change_mode(Lock& lock, Mode* mode, Mode wanted);

  /// A thread looks for deadlocks from now on, also for those in which nobody waits in the driver.
  void watch_for_deadlocks();

  const Clock& host_clock() const { return host_clock_; }
  /// It has executed, and the host has been told so, if only by what came behind it.
  bool host_knows(const Op& op) const;
  /// Where a new stream begins: behind the end of a timeline that the host has seen, which is
  /// ordered before everything to come, or on a new one. So a clock does not grow with the streams
  /// that a long-lived process has had.
  Instant begin_timeline();
  /// No operation comes behind `last`, where its stream has ended.
  void end_timeline(Instant last) { ended_.push_back(last); }
  size_t pending() {
    run_aside();
    return pending_.size();
  }
  std::vector<OpRef> pending_of(const Context& context) const;

 private:
  void run(const OpRef& op);
  void finish(const OpRef& op);
  void see(Instant at);
  void hand_to_host(const OpRef& op);
  void run_ready();
  void run_aside();
  /// False: a host function has been started that has to return first, and `waits` is false.
  bool force(Lock& lock, const OpRef& op, bool waits);
  void sleep_for(Lock& lock, const OpRef& op);
  /// Waits for the service thread, which has host functions to run before this operation.
  template <typename Ready>
  void wait_for_host_function(Lock& lock, const Op& op, Ready ready);
  bool schedule(const OpRef& op);
  void schedule_held_back();
  void advance();
  void need_service();
  void service();

  const Settings& settings_;
  std::mutex& mutex_;
  std::condition_variable changed_;
  std::condition_variable service_wanted_;
  Deadlocks deadlocks_;
  std::map<uint64_t, OpRef> pending_;            // by id: always a topological order
  std::set<std::pair<uint64_t, uint64_t>> due_;  // timed mode: (finish, id)
  std::deque<OpRef> for_host_;
  std::vector<OpRef> aside_;
  Clock host_clock_;
  uint64_t last_id_ = 0;
  unsigned timelines_ = 0;
  std::deque<Instant> ended_;
  bool serving_ = false;
  bool watching_ = false;
};

}  // namespace cupool::sim
