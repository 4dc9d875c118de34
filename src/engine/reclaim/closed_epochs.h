// SPDX-License-Identifier: Apache-2.0
// The closed epochs of a context and their fences: closing, querying, waiting, and reclaiming.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "cuda/driver.h"
#include "engine/block/block.h"
#include "engine/reclaim/epochs.h"
#include "engine/reclaim/ordering_mutex.h"
#include "engine/reclaim/wait_result.h"
#include "stats/device_stats.h"

namespace cupool::engine {

class Captures;

/// Part of an Ordering. The caller holds its lock for every function.
class ClosedEpochs {
 public:
  /// `captures`: of the same context.
  ClosedEpochs(const cuda::Driver& driver, CUcontext context, stats::DeviceStats& stats,
               Epochs& epochs, const Captures& captures);

  using IfEmpty = Epochs::IfEmpty;

  /// False: the driver's last answer was that it records no events of the context.
  bool can_record() const { return can_record_; }

  /// Closes the open epoch with a fence, if it has frees (else as `if_empty` says) and a fence is
  /// possible now. Success without a fence in three cases: a stream of any context captures, since
  /// a stream of this context may have joined the capture; the engine has stepped aside, and a
  /// fence does not cover all work; or the driver records no events of the context (see
  /// can_record()).
  CUresult record(IfEmpty if_empty);

  /// As record(), called by a free. If it closed an epoch, also queries the older fences.
  CUresult record_by_free();

  /// Whether a fence covers `epoch`; records one if none does and one is possible now.
  bool fence(EpochNumber epoch);

  /// Closes the open epoch without a fence, unless there is no host memory for it. Returns the
  /// newest closed epoch, which a wait for the whole context that begins now completes.
  EpochNumber close_unfenced();

  /// Reclaims the blocks of complete fences. Never waits for the GPU.
  CUresult look_at_fences();

  /// Whether the GPU has completed all work of the context: a fence recorded now is complete when
  /// asked at once. Recorded only if no older fence is pending.
  bool has_nothing_pending();

  /// Marks all epochs up to `up_to` complete and reclaims their blocks.
  void reclaim_up_to(EpochNumber up_to);

  /// Takes out the reclaimed blocks.
  BlockList pop_reclaimed();

  /// Takes over blocks that were flushed into `epoch`.
  void adopt(EpochNumber epoch, BlockList& blocks);

  /// The oldest epoch that is not complete; the open one if all closed ones are. A complete one may
  /// still be in the queue, since another thread waits for its fence.
  EpochNumber oldest() const;
  /// The newest epoch with pending blocks; kNoEpoch: none. The fence of an epoch without any may
  /// cover work that is no freed block's.
  EpochNumber newest_with_frees() const;

  /// Waits for the first fence that covers `epoch`, and records it if needed. Releases the lock
  /// meanwhile. Not possible: no fence can be recorded for it. `limit_ns`: see Ordering::wait().
  WaitResult wait_for_fence(EpochNumber epoch, OrderingLock& lock, std::uint64_t limit_ns);

  /// The context is gone: empties the epochs, and leaves their events to the driver.
  void abandon();

 private:
  struct Epoch {
    EpochNumber number = kNoEpoch;
    CUevent fence = nullptr;  ///< null: closed without one
    BlockList blocks;         ///< without those kept by threads
    std::uint64_t bytes = 0;  ///< pending, including blocks kept by threads
    std::uint64_t fenced_ns = 0;
    std::uint64_t unwaited = 0;  ///< frees of StallsAvoided when the fence was recorded
    bool by_free = false;        ///< it was recorded by the last of them
    unsigned waiters = 0;        ///< threads that wait for the fence
    bool seen_complete = false;
  };

  enum class Fence { none, recorded };
  CUresult close(Fence with, IfEmpty if_empty);
  void count_stalls_avoided(const Epoch& pending);
  CUresult create_event(CUevent* event);
  bool has_free_place();
  void keep_event(CUevent event);
  Epoch* first_fenced_from(EpochNumber epoch);
  bool captures_forbid() const;
  CUresult query(Epoch& epoch);
  WaitResult wait_for(Epoch* fenced, OrderingLock& lock, std::uint64_t limit_ns);
  CUresult wait_for_event(CUevent fence) const;
  CUresult wait_at_most(CUevent fence, std::uint64_t limit_ns) const;

  const cuda::Driver& driver_;
  const CUcontext context_;
  stats::DeviceStats& stats_;
  Epochs& epochs_;
  const Captures& captures_;
  std::list<Epoch> closed_;       ///< oldest first
  std::list<Epoch> free_places_;  ///< those of former epochs, and one from the beginning
  BlockList reclaimed_;           ///< of complete epochs; count as freed until they are cached
  std::vector<CUevent> spare_events_;
  bool can_record_;
};

}  // namespace cupool::engine
