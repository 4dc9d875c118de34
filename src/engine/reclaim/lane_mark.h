// SPDX-License-Identifier: Apache-2.0
// The mark of the lane: an event behind all work that was submitted before the last free in it
// (engine/reclaim/lane). It is recorded by frees, waited for on the device by other streams once
// the lane was left, and on the host before memory of the lane leaves cupool.
#pragma once

#include <atomic>
#include <cstdint>

#include "cuda/driver.h"
#include "engine/reclaim/use_count.h"

namespace cupool::engine {

/// One for the process. Thread-safe.
class LaneMark {
 public:
  /// The stream that is marked. Before the first mark.
  static void begin(CUcontext context, CUstream stream);

  /// While this object lives, the calling thread uses the mark, and let_users_out() waits for it.
  class Use {
   public:
    Use() : use_(users_) {}
    /// The event, which lasts as long as this object. Null: there is none, or its context has
    /// ended.
    CUevent event() const { return event_.load(std::memory_order_seq_cst); }
    /// Has `stream`, an explicit handle, wait on the device for the mark unless it is complete.
    /// Whether it is.
    bool put_behind(const cuda::Driver& driver, CUstream stream) const;

   private:
    const UseCount::Use use_;
  };
  /// Returns when no thread uses the mark. False: one still does after ten seconds, since it waits
  /// in the driver for room in the stream's queue; the mark is stale then.
  static bool let_users_out();

  /// Begins a mark; everything submitted before the next call is covered by it.
  static void count() { begun_.fetch_add(1, std::memory_order_seq_cst); }
  /// Records the mark, in a Use. False: the driver refused, and the mark is stale: from then on the
  /// stream itself is waited for, on the host.
  static bool record(const cuda::Driver& driver);

  /// The number of marks begun; 0: no block was ever handed out in stream order.
  static std::uint64_t number() { return begun_.load(std::memory_order_seq_cst); }
  /// number() if all of these marks are recorded, else 0.
  static std::uint64_t recorded();

  /// Whether other streams have to be ordered behind the mark. One load.
  static bool is_awaited() { return awaited_.load(std::memory_order_relaxed); }
  /// Before the lane is left, and behind it, when all marks that cover a free are recorded: whether
  /// they have to. Who sees that the lane was left sees what was said before.
  static void await(bool awaited) { awaited_.store(awaited, std::memory_order_relaxed); }
  /// Has `stream` wait as Use::put_behind() does, if the mark is awaited. Nothing is awaited any
  /// more once it is complete.
  static void order_behind(const cuda::Driver& driver, CUstream stream);

  enum class Wait { until_complete, not_at_all };
  /// Waits on the host until the work before every free in the lane is complete. Whether it is.
  static bool wait(const cuda::Driver& driver, Wait wait = Wait::until_complete);

  /// The stream is about to be destroyed: its handle may name another one later. The lane was left.
  /// Returns when no thread uses the stream.
  static void forget_stream();
  struct Place {
    CUcontext context;
    CUstream stream;  ///< null: none, or destroyed
  };
  static Place place() {
    return {context_.load(std::memory_order_relaxed), stream_.load(std::memory_order_relaxed)};
  }
  /// Whether a mark could not be recorded.
  static bool is_stale() { return stale_.load(std::memory_order_relaxed); }
  /// The mark is complete, and its event is about to end with its context. The lane was left.
  /// Returns when no thread uses the event or waits for it.
  static void forget();

  /// As at the start of the process.
  static void reset();

 private:
  static bool wait_for_stream(const cuda::Driver& driver);

  // Read by every submission once the lane was left.
  alignas(128) static std::atomic<bool> awaited_;
  static std::atomic<bool> stale_;       ///< orders nothing: the event of the marks before is right
  static std::atomic<CUstream> stream_;  ///< null: none, or destroyed
  static std::atomic<CUcontext> context_;
  static std::atomic<CUevent> event_;
  // Written by every mark.
  alignas(128) static UseCount users_;
  static std::atomic<std::uint64_t> begun_;
  // Host waits, which may be long: only forget() waits for them.
  static UseCount waiters_;
};

}  // namespace cupool::engine
