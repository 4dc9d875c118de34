// Pending GPU work that touches host memory: what a program leans on when it overwrites or reads
// host memory after a free. Legacy frees wait for it, so ours have to (contract 2).
//
// Copies and callbacks: an event is recorded on their stream right behind them, so that a free
// waits for the copy and not for what comes after it. Managed and zero-copy memory can be touched
// by any kernel: while there is any, a free waits for the context.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "cuda/driver.h"

namespace cupool::core {

/// Of one context. Thread-safe; no lock is held while the host waits.
class HostWork {
 public:
  HostWork(const cuda::Driver& driver, CUcontext context) : driver_(driver), context_(context) {}

  /// Work that touches host memory was submitted to `stream`, a handle that means what it says
  /// (CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, never 0). Inside a capture nothing has been submitted
  /// to the GPU; the caller checks that.
  void submitted(CUstream stream);

  /// The same where no event may be recorded.
  void submitted_unseen() { unseen_.fetch_add(1, std::memory_order_acq_rel); }

  /// The handle will mean another stream; its pending work stays pending.
  void stream_destroyed(CUstream stream);

  /// Whether wait() could have something to wait for. One relaxed load.
  bool maybe_pending() const { return pending_.load(std::memory_order_acquire) != 0; }

  /// Whether work was submitted that no event could be recorded for: only a wait for the whole
  /// context covers it.
  bool needs_context() const {
    return unseen_.load(std::memory_order_acquire) > covered_.load(std::memory_order_acquire);
  }

  /// What had been submitted when a wait began.
  struct Mark {
    std::uint64_t unseen = 0;
    std::uint64_t sequence = 0;  ///< 0: nothing pending had an event
  };
  /// Before a wait that is not for our events: the program's own, or one for the whole context.
  Mark begin_wait();
  /// The wait was for the whole context and has succeeded: it covers all that `before` says.
  void end_context_wait(const Mark& before);
  /// The same for a wait for one stream, named as in submitted().
  void end_stream_wait(CUstream stream, const Mark& before);

  /// Waits until all copies and callbacks submitted so far are done. `*waited` says whether the GPU
  /// was still at it. A code that is no success is the driver's.
  CUresult wait(bool* waited);

  /// The context is gone, and the events with it.
  void abandon();

 private:
  struct Entry {
    CUstream stream = nullptr;  ///< null: the stream has been destroyed
    std::uint64_t thread = 0;   ///< for CU_STREAM_PER_THREAD: whose; never used twice
    CUevent event = nullptr;
    std::uint64_t first = 0;     ///< sequence of the first record since nothing was pending
    std::uint64_t sequence = 0;  ///< of the last record
    bool pending = false;
  };

  static std::uint64_t thread_of(CUstream stream);
  Entry* entry_for_locked(CUstream stream, std::uint64_t thread);
  void done_locked(Entry& entry, std::uint64_t before);
  CUresult create_event(CUevent* event);

  const cuda::Driver& driver_;
  const CUcontext context_;
  std::mutex mutex_;
  std::vector<Entry> entries_;
  std::uint64_t next_sequence_ = 1;
  std::atomic<unsigned> pending_{0};  ///< entries that are pending
  // How much was submitted without an event, and how much of it a wait has covered. Both only grow.
  std::atomic<std::uint64_t> unseen_{0};
  std::atomic<std::uint64_t> covered_{0};
};

/// Host memory that kernels can reach: managed, or pinned with a device pointer that the program
/// asked for. Counted for the whole process. Thread-safe.
class HostReachable {
 public:
  enum class Kind { managed, zero_copy };
  void add(Kind kind, std::uintptr_t address, std::uint64_t bytes = 0);
  void remove(Kind kind, std::uintptr_t address);
  void clear();
  bool any(Kind kind) const {
    return counts_[static_cast<int>(kind)].load(std::memory_order_relaxed) != 0;
  }
  /// Bytes of all of the kind, as far as they were told.
  std::uint64_t bytes(Kind kind) const;

 private:
  struct Range {
    std::uintptr_t address;
    std::uint64_t bytes;
  };
  mutable std::mutex mutex_;
  std::vector<Range> ranges_[2];
  std::atomic<std::size_t> counts_[2] = {};
};

}  // namespace cupool::core
