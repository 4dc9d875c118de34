// SPDX-License-Identifier: Apache-2.0
// Epoch-based reclamation with the GPU as the reader: decides when a freed block can be reused (I1,
// I3).
//
// A freed block joins the open epoch of its context. Closing an epoch records its fence, one event
// that captures all work of the context (cuCtxRecordEvent). Once the fence is seen complete, no GPU
// work can still use the blocks of this epoch or of older ones: they can be reclaimed. If the
// driver records no events of contexts, an epoch is closed without a fence, and a synchronisation
// of the context completes it.
//
// A thread that frees many blocks keeps them itself. Its batch joins the open epoch only by number
// and bytes, and is complete once Epochs::complete_up_to() has reached that number. So one fence
// serves all threads whose batches joined before it, and their blocks never mix.
#pragma once

#include <cstdint>
#include <optional>

#include "cuda/driver.h"
#include "engine/block/block.h"
#include "engine/reclaim/barriers.h"
#include "engine/reclaim/captures.h"
#include "engine/reclaim/closed_epochs.h"
#include "engine/reclaim/epochs.h"
#include "engine/reclaim/ordering_mutex.h"
#include "engine/reclaim/wait_result.h"
#include "stats/device_stats.h"

namespace cupool::engine {

/// The parts of a context's ordering, joined by one lock: its epochs, its capturing streams, and
/// the barriers for waits without a fence. Thread-safe.
class Ordering {
 public:
  Ordering(const cuda::Driver& driver, CUcontext context, stats::DeviceStats& stats)
      : driver_(driver),
        context_(context),
        closed_(driver, context, stats, epochs_, captures_),
        barriers_(driver, context, mutex_, closed_),
        captures_(mutex_, barriers_) {}

  /// The open epoch and the newest complete one; used without the lock.
  Epochs& epochs() { return epochs_; }
  Captures& captures() { return captures_; }
  Barriers& barriers() { return barriers_; }

  /// Takes over blocks that were flushed into `epoch`, from the thread that kept them.
  void adopt(EpochNumber epoch, BlockList& blocks);

  /// Behaviour of a call while another thread holds the lock.
  enum class IfBusy { wait, skip };

  /// Called by a free: closes the open epoch and records its fence. Then queries older fences.
  /// IfBusy::skip does nothing while another thread holds the lock; a later call records the fence.
  CUresult close(IfBusy if_busy = IfBusy::wait);

  /// Whether a fence covers `epoch`, or it is complete, so that a wait is one for a fence. Records
  /// one, if none does and one can be recorded now.
  bool fence(EpochNumber epoch);

  /// Waits until the GPU has completed all work that may use blocks retired up to `epoch`, and
  /// closes that epoch if it is open. Unless the result is complete, the blocks stay retired.
  /// `limit_ns`: time limit; 0: none. To wait for all work submitted so far, pass epochs().open().
  WaitResult wait(EpochNumber epoch, std::uint64_t limit_ns = 0);

  /// The epoch whose completion covers all blocks retired so far; kNoEpoch: none is pending.
  EpochNumber newest() const;

  /// As wait(), for the oldest epoch. `ran_dry`, if not null, is set by a successful wait for a
  /// busy GPU: whether it then has nothing left of this context's work. Not asked for otherwise.
  WaitResult wait_for_oldest(bool* ran_dry = nullptr);

  /// The epochs that poll() looks at. all: closes the open epoch first, so that the GPU can
  /// complete it next.
  enum class Poll { closed, all };

  /// Moves the blocks of all complete epochs to `reclaimed`. Never waits for the GPU. Returns the
  /// driver's error if it fails. `enough`: while other threads hold the lock, returns as soon as
  /// this epoch is complete, since their fences complete it too. So threads that share fences do
  /// not queue for the lock. kNoEpoch is always complete. Without `enough`, waits for the lock.
  CUresult poll(Poll which, BlockList* reclaimed, std::optional<EpochNumber> enough = {});

  /// Takes out the blocks that other calls than poll() have reclaimed since the last call.
  BlockList pop_reclaimed();

  /// Around the program's own synchronisation of the context. If it succeeds, all blocks retired
  /// before it began can be reclaimed.
  EpochNumber begin_synchronize();
  void end_synchronize(EpochNumber before);

  /// Drops all state, because the context is gone: empties the epochs, and leaves their events to
  /// the driver.
  void abandon();

 private:
  bool has_run_dry();
  bool lock_unless_complete(EpochNumber enough, OrderingLock& lock) const;
  WaitResult synchronize(OrderingLock& lock);

  const cuda::Driver& driver_;
  const CUcontext context_;
  Epochs epochs_;
  alignas(128) mutable OrderingMutex mutex_;
  ClosedEpochs closed_;
  Barriers barriers_;
  Captures captures_;
};

}  // namespace cupool::engine
