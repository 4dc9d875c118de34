// SPDX-License-Identifier: Apache-2.0
// Pending GPU work that touches host memory. A program relies on its end when it overwrites or
// reads host memory after a free. The driver's free waits for it, so cupool's does too (contract
// 2).
//
// For copies and callbacks, an event is recorded on their stream right behind them, so that a free
// waits for the copy and not for later work. Memory that kernels reach is in
// engine/reclaim/host_reachable.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <unordered_map>

#include "cuda/driver.h"
#include "engine/reclaim/host_work_calls.h"
#include "engine/reclaim/wait_result.h"
#include "util/lock_order.h"

namespace cupool::engine {

/// One per context. Thread-safe; holds no lock while the host waits. Has one event for each stream
/// with pending work, one more for each wait meanwhile, and a constant number. submitted() takes
/// constant time.
class HostWork {
 public:
  HostWork(const cuda::Driver& driver, CUcontext context) : driver_(driver), context_(context) {}

  /// The driver's calls under way whose work will be noted.
  HostWorkCalls& calls() { return calls_; }

  /// Notes work on `stream` that touches host memory. `stream` is an explicit handle
  /// (CU_STREAM_LEGACY or CU_STREAM_PER_THREAD, never 0). Not to be called inside a capture, where
  /// nothing is submitted to the GPU.
  void submitted(CUstream stream);

  /// As submitted(), where no event may be recorded.
  void submitted_unseen() { unseen_.fetch_add(1, std::memory_order_acq_rel); }

  /// Called before `stream` is destroyed: its handle may name another stream then. Its pending work
  /// stays pending.
  void destroys(CUstream stream);

  /// Whether wait() may have work to wait for. One load.
  bool maybe_pending() const { return pending_.load(std::memory_order_acquire) != 0; }

  /// Whether work was submitted without an event. Only a wait for the whole context covers it.
  bool needs_context() const {
    return unseen_.load(std::memory_order_acquire) > covered_.load(std::memory_order_acquire);
  }

  /// The work submitted before a wait began.
  struct Mark {
    std::uint64_t unseen = 0;
    std::uint64_t sequence = 0;  ///< 0: no pending work had an event
  };
  /// Before a wait by other means than these events: the program's own, or one for the whole
  /// context.
  Mark begin_wait();
  /// After a successful wait for the whole context, which covers the work in `before`.
  void end_context_wait(const Mark& before);
  /// After a successful wait for one stream, named as in submitted().
  void end_stream_wait(CUstream stream, const Mark& before);

  /// Waits for all copies and callbacks submitted so far.
  WaitResult wait();

  /// The context is gone, with its events.
  void abandon();

 private:
  struct Key {
    CUstream stream = nullptr;  ///< null: destroyed, or its entry was given up
    std::uint64_t thread = 0;   ///< the thread of CU_STREAM_PER_THREAD; numbers are never reused
    bool operator==(const Key& other) const {
      return stream == other.stream && thread == other.thread;
    }
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const {
      return std::hash<CUstream>()(key.stream) ^ (key.thread * 0x9e3779b97f4a7c15);
    }
  };
  struct Entry {
    Key key;
    CUevent event = nullptr;     ///< null: gone with its context
    std::uint64_t first = 0;     ///< lowest sequence recorded since the entry became pending
    std::uint64_t sequence = 0;  ///< of the newest record
    bool pending = false;
    bool idle = false;   ///< in idle_
    unsigned users = 0;  ///< threads in a driver call with the event
  };
  using Entries = std::list<Entry>;
  using Position = Entries::iterator;

  static Key key_of(CUstream stream);
  bool begin_record(CUstream stream, Position* entry, CUevent* event);
  Position entry_for_locked(const Key& key);
  Position unused_locked();
  void look_at_oldest_locked();
  void forget_key_locked(Entry& entry);
  void detach_locked(std::uint64_t before);
  void done_locked(Entry& entry, std::uint64_t before);
  void settle_locked(Position entry);
  void let_go_locked(Position entry);
  CUresult create_event(CUevent* event);

  const cuda::Driver& driver_;
  const CUcontext context_;
  HostWorkCalls calls_;
  util::Ranked<util::LockRank::host_work> mutex_;
  // Pending, or in use; the entry queried last is at the end. An entry in use does not move.
  Entries active_;
  Entries idle_;  ///< the others, with their events; the next one to use is in front
  std::unordered_map<Key, Position, KeyHash> by_stream_;
  std::uint64_t next_sequence_ = 1;
  std::atomic<unsigned> pending_{0};  ///< pending entries
  // Work submitted without an event, and the part that a wait has covered. Both only grow.
  std::atomic<std::uint64_t> unseen_{0};
  std::atomic<std::uint64_t> covered_{0};
};

}  // namespace cupool::engine
